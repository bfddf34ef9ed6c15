#include "plan/proposals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "plan/json_fields.h"
#include "plan/prediction.h"
#include "plan/selection.h"

namespace gradwire {
namespace {

/// Of predicted steps, the shortest of which is 1. Forecasts are not so wrong that what they see
/// behind this could be the best.
constexpr double kFarLonger = 2;
/// A number's errors add up: those of two encodings are what `sra` makes, by which codecs are
/// judged.
constexpr std::uint32_t kMostEncodings = 2;

bool has_same_ways(const Plan& a, const Plan& b) {
  const auto way_of = [](const LayerPlan& entry) { return entry.stages.front().way; };
  return std::ranges::equal(a.layers, b.layers, {}, way_of, way_of);
}

Proposal alike(std::span<const Layer> layers, DensePolicy policy, const Codec& codec) {
  policy.way = Way{.codec = codec};
  Proposal proposal{
      codec == Way{}.codec ? "all layers exactly" : fmt::format("{} for all layers", codec.spec()),
      plan_for(layers, policy)};
  return proposal;
}

}  // namespace

std::vector<Codec> usual_codecs() {
  return {Codec::parse("uniform:bits=4,bucket=128"), Codec::parse("grid:step=0.5")};
}

std::vector<Proposal> proposals(std::span<const Layer> layers, const DensePolicy& fixed) {
  std::vector<Proposal> all{alike(layers, fixed, Way{}.codec)};
  for (const Codec& codec : usual_codecs()) {
    Proposal proposal = alike(layers, fixed, codec);
    if (!has_same_ways(proposal.plan, all.front().plan)) all.push_back(std::move(proposal));
  }
  return all;
}

std::vector<Proposal> proposals(std::span<const Layer> layers, const DensePolicy& fixed,
                                const Observation& observation, const Cluster& cluster) {
  const Workload& workload = observation.workload;
  const Costs costs = fitted_costs(observation, cluster);
  std::vector<Proposal> all = proposals(layers, fixed);
  const Selection selection = select(workload, cluster, costs,
                                     {.codecs = usual_codecs(), .most_encodings = kMostEncodings});
  Plan selected = plan_for(layers, fixed, plan_of(workload, selection));
  const auto is_known = [&](const Proposal& each) { return has_same_ways(each.plan, selected); };
  if (std::ranges::none_of(all, is_known)) {
    all.insert(all.begin() + 1, {"a way of its own for every layer", std::move(selected)});
  }
  double shortest = 0;
  for (Proposal& each : all) {
    each.predicted_seconds =
        predict(workload, cluster, costs, ways_of(each.plan, workload, 0)).step_seconds;
    if (shortest == 0 || each.predicted_seconds < shortest) shortest = each.predicted_seconds;
  }
  all.erase(std::remove_if(all.begin() + 1, all.end(),
                           [&](const Proposal& each) {
                             return each.predicted_seconds > kFarLonger * shortest;
                           }),
            all.end());
  return all;
}

std::string text_of(std::span<const Proposal> proposals) {
  std::vector<std::string> texts;
  for (const Proposal& each : proposals) {
    texts.push_back(fmt::format("{{\"name\": {}, \"plan\": {}, \"predicted_seconds\": {}}}",
                                quoted(each.name), quoted(each.plan.json()),
                                each.predicted_seconds));
  }
  return fmt::format("[{}]", fmt::join(texts, ","));
}

std::vector<Proposal> parse_proposals(std::string_view text) {
  const LocatedJson root = parse_located_json(text);
  require(root, LocatedJson::Kind::list, "proposals are a list: expected one");
  std::vector<Proposal> proposals;
  for (const LocatedJson& each : root.list) {
    proposals.push_back({text_member(each, "name", "a proposal"),
                         Plan::parse(text_member(each, "plan", "a proposal")),
                         number_member(each, "predicted_seconds", "a proposal")});
  }
  return proposals;
}

void change(Plan& plan, std::uint64_t from_step, const Plan& next) {
  for (LayerPlan& entry : plan.layers) {
    Stage stage = next.stages_of(entry.layers).front();
    stage.from_step = from_step;
    std::vector<Stage>& stages = entry.stages;
    if (stages.back().from_step == from_step && stages.size() > 1) stages.pop_back();
    if (stages.back().way == stage.way || stages.back().from_step == from_step) {
      stage.from_step = stages.back().from_step;
      stages.back() = std::move(stage);
    } else {
      stages.push_back(std::move(stage));
    }
  }
}

}  // namespace gradwire
