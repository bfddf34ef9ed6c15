#include "plan/prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "gradwire/error.h"
#include "plan/cost_presets.h"
#include "plan/models.h"
#include "plan/selection.h"

namespace gradwire {
namespace {

using Work = PredictedSpan::Work;

std::vector<Way> ways_of_selection(const Selection& selection) {
  std::vector<Way> ways;
  for (const Choice& choice : selection.choices) ways.push_back(choice.way());
  return ways;
}

TEST(Prediction, of_the_ways_that_are_selected_is_the_step_that_they_were_selected_for) {
  for (const char* model : {"resnet50", "lstm"}) {
    for (const Cluster cluster : {Cluster{4, 1}, Cluster{1, 4}, Cluster{3, 2}}) {
      const Workload workload = model_workload(model, 0.1);
      const Costs costs = preset_costs("cpu");
      const Selection selection =
          select(workload, cluster, costs, {.codecs = codecs_without_feedback(costs)});
      const Prediction found = predict(workload, cluster, costs, ways_of_selection(selection));
      EXPECT_DOUBLE_EQ(found.step_seconds, selection.step_seconds) << model << cluster.hosts;
      EXPECT_DOUBLE_EQ(found.exposed_seconds, selection.exposed_seconds) << model << cluster.hosts;
    }
  }
}

/// Links take a second for four bytes, codecs nothing.
Costs slow_links() {
  Costs costs;
  costs.inside = costs.between = {0, 0.25};
  costs.codecs["none"] = {};
  costs.codecs[Codec::parse("sign").spec()] = {CostTable({{1, 1}}), CostTable({{1, 1}}), {}, 0.5};
  costs.cores = 4;
  return costs;
}

Workload one_tensor(std::size_t elements) { return {"one", {{"w", elements, 5}}, 1, 5}; }

TEST(Prediction, counts_what_a_rank_sends) {
  // By owners, each of 2 x 2 ranks sends three quarters of the numbers to them, and as many sums.
  const std::vector<Way> exact{Way::parse("none+route:reduce_scatter-all_gather")};
  Prediction found = predict(one_tensor(80), {2, 2}, slow_links(), exact);
  EXPECT_DOUBLE_EQ(found.bytes_inside, 2 * 4 * 20);
  EXPECT_DOUBLE_EQ(found.bytes_between, 2 * 4 * 40);
  const std::vector<Way> lossy{Way::parse("sign+route:allgather")};
  found = predict(one_tensor(80), {2, 2}, slow_links(), lossy);
  EXPECT_DOUBLE_EQ(found.bytes_inside, 0.5 * 80);
  EXPECT_DOUBLE_EQ(found.bytes_between, 0.5 * 160);
}

TEST(Prediction, says_what_is_done_when) {
  const std::vector<Way> ways{Way::parse("sign+route:allgather")};
  const auto spans = predicted_spans(one_tensor(80), {2, 1}, slow_links(), ways);
  std::map<Work, const PredictedSpan*> by_work;
  for (const PredictedSpan& span : spans) by_work[span.work] = &span;
  ASSERT_EQ(by_work.size(), spans.size());
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(by_work.at(Work::computing)->interval.end, 5);
  // Encoded for 80 s, as a point of one element stands for a second each; sent for 10 s.
  EXPECT_DOUBLE_EQ(by_work.at(Work::encode)->interval.end, 85);
  EXPECT_DOUBLE_EQ(by_work.at(Work::send)->interval.begin, 85);
  EXPECT_DOUBLE_EQ(by_work.at(Work::receive)->interval.end, 95);
  EXPECT_DOUBLE_EQ(by_work.at(Work::send)->bytes, 40);
  EXPECT_DOUBLE_EQ(by_work.at(Work::encode)->bytes, 0);
  const Prediction found = predict(one_tensor(80), {2, 1}, slow_links(), ways);
  EXPECT_DOUBLE_EQ(by_work.at(Work::decode)->interval.end + 1, found.step_seconds);
}

TEST(Prediction, small_tensors_are_in_the_spans_of_the_one_that_they_travel_with) {
  Workload workload{"two", {{"bias", 4, 1}, {"w", 1 << 20, 2}}, 0, 2};
  const std::vector<Way> ways(2, Way::parse("none+route:sra"));
  for (const PredictedSpan& span : predicted_spans(workload, {2, 1}, slow_links(), ways)) {
    EXPECT_EQ(span.interval.tensor, 1u);
    EXPECT_EQ(span.more_tensors, 1u);
  }
}

TEST(Prediction, takes_the_ways_that_a_plan_has_at_a_step) {
  const Plan plan = Plan::parse(
      R"({"gradwire_plan": 1, "layers": [{"layers": "w", "stages": [
          {"from_step": 0, "way": "none"}, {"from_step": 9, "way": "sign"}]}]})");
  const Workload workload{"two", {{"w", 4, 1}, {"v", 4, 1}}, 0, 1};
  const Way none = Way::parse("none"), sign = Way::parse("sign");
  EXPECT_EQ(ways_of(plan, workload, 8), (std::vector<Way>{none, none}));
  EXPECT_EQ(ways_of(plan, workload, kLastStep), (std::vector<Way>{sign, none}));
}

TEST(Prediction, without_a_route_takes_the_engines) {
  const Costs costs = preset_costs("cpu");
  const Workload workload{"one", {{"a", 1U << 22U, 0.01}}, 0, 0.01};
  const auto seconds = [&](const char* way) {
    const Way ways[] = {Way::parse(way)};
    return predict(workload, Cluster{4, 2}, costs, ways).step_seconds;
  };
  EXPECT_EQ(seconds("none"), seconds("none+route:sra"));
  EXPECT_EQ(seconds("grid:step=0.5"), seconds("grid:step=0.5+route:sra"));
  EXPECT_NE(seconds("none"), seconds("none+route:hierarchical"));
}

TEST(Prediction, unknown_codecs_and_routes_are_refused) {
  const std::vector<Way> unmeasured{Way::parse("uniform:bits=3")};
  EXPECT_THROW(predict(one_tensor(8), {2, 1}, slow_links(), unmeasured), Error);
  Way way;
  way.route = "detour";
  EXPECT_THROW(predict(one_tensor(8), {2, 1}, slow_links(), std::vector<Way>{way}), Error);
}

}  // namespace
}  // namespace gradwire
