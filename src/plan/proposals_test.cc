#include "plan/proposals.h"

#include <gtest/gtest.h>

#include "plan/cost_presets.h"

namespace gradwire {
namespace {

constexpr std::size_t kLarge = std::size_t{1} << 22U;
const std::vector<Layer> kLayers{
    {"bias", 64, 1}, {"first", kLarge, 2}, {"embedding", kLarge, 2}, {"last", kLarge, 2}};
const DensePolicy kFixed{.exact = {"emb*"}, .others = {{"last", Way::parse("fp16")}}};

/// Of two hosts whose exact exchange took so long, and that compute for 0.1 s.
Observation seen(double exchange_seconds) {
  Observation seen{.exchange_seconds = exchange_seconds, .latency_seconds = 1e-4};
  seen.costs = preset_costs("cpu");
  seen.costs.cores = 4;
  seen.workload = {"this job",
                   {{"last", kLarge, 0},
                    {"embedding", kLarge, 0.02},
                    {"first", kLarge, 0.06},
                    {"bias", 64, 0.06}},
                   0.04,
                   0.06};
  return seen;
}

std::vector<std::string> names_of(const std::vector<Proposal>& proposals) {
  std::vector<std::string> names;
  for (const Proposal& each : proposals) names.push_back(each.name);
  return names;
}

std::string way_of(const Plan& plan, const char* layer) {
  return plan.stages_of(layer).front().way.short_text();
}

TEST(Proposals, begin_with_the_exact_one) {
  const std::vector<Proposal> all = proposals(kLayers, kFixed);
  ASSERT_EQ(all.size(), 1 + usual_codecs().size());
  EXPECT_EQ(way_of(all[0].plan, "first"), "none");
  for (std::size_t i = 0; i < usual_codecs().size(); ++i) {
    EXPECT_EQ(all[i + 1].plan.stages_of("first").front().way.codec, usual_codecs()[i]);
  }
}

TEST(Proposals, leave_what_is_fixed) {
  for (const Proposal& each : proposals(kLayers, kFixed, seen(10), {2, 1})) {
    EXPECT_EQ(way_of(each.plan, "bias"), "none") << each.name;
    EXPECT_EQ(way_of(each.plan, "embedding"), "none") << each.name;
    EXPECT_EQ(way_of(each.plan, "last"), "fp16") << each.name;
  }
}

TEST(Proposals, of_a_model_without_a_choice_are_one) {
  const std::vector<Layer> small{{"bias", 64, 1}, {"gain", 64, 1}};
  EXPECT_EQ(names_of(proposals(small, {})), std::vector<std::string>{"all layers exactly"});
}

TEST(Proposals, on_a_slow_link_leave_out_nothing_but_what_is_hopeless) {
  const std::vector<Proposal> slow = proposals(kLayers, {}, seen(10), {2, 1});
  EXPECT_EQ(slow.front().name, "all layers exactly");  // always there
  ASSERT_GE(slow.size(), 2);
  double shortest = slow.front().predicted_seconds;
  for (const Proposal& each : slow) shortest = std::min(shortest, each.predicted_seconds);
  EXPECT_LT(shortest, 0.5 * slow.front().predicted_seconds);
  for (std::size_t i = 1; i < slow.size(); ++i) {
    EXPECT_LE(slow[i].predicted_seconds, 2 * shortest) << slow[i].name;
  }
}

TEST(Proposals, select_exactly_where_nothing_is_gained) {
  for (const Proposal& each : proposals(kLayers, {}, seen(1e-3), {2, 1})) {
    EXPECT_NE(each.name, "a way of its own for every layer");
  }
}

TEST(Change, appends_stages) {
  const std::vector<Proposal> all = proposals(kLayers, kFixed);
  Plan plan = all[0].plan;
  change(plan, 10, all[1].plan);
  change(plan, 20, all[1].plan);  // nothing new
  change(plan, 30, all[2].plan);
  change(plan, 40, all[0].plan);
  plan.check();
  const auto& stages = plan.stages_of("first");
  ASSERT_EQ(stages.size(), 4);
  EXPECT_EQ(stages[1].from_step, 10);
  EXPECT_EQ(stages[1].way.codec, usual_codecs()[0]);
  EXPECT_EQ(stages[2].from_step, 30);
  EXPECT_EQ(stages[3].from_step, 40);
  EXPECT_EQ(stages[3].way, Way{});
  EXPECT_EQ(plan.stages_of("last").size(), 1);
}

TEST(Change, at_the_same_step_replaces) {
  const std::vector<Proposal> all = proposals(kLayers, kFixed);
  Plan plan = all[0].plan;
  change(plan, 0, all[1].plan);
  EXPECT_EQ(plan.stages_of("first").size(), 1);
  EXPECT_EQ(plan.stages_of("first").front().way.codec, usual_codecs()[0]);
  change(plan, 10, all[2].plan);
  change(plan, 10, all[1].plan);
  EXPECT_EQ(plan.stages_of("first").size(), 1);
}

}  // namespace
}  // namespace gradwire
