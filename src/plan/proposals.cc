#include "plan/proposals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "plan/json_fields.h"
#include "plan/prediction.h"
#include "plan/selection.h"

namespace gradwire {
namespace {

/// Of predicted steps, the shortest of which is 1. Forecasts are not so wrong that what they see
/// behind this could be the best.
constexpr double kFarLonger = 2;
/// What is not shorter than the simple plans by this much is not worth the steps of a trial.
constexpr double kWorthATrial = 0.99;
/// A number's errors add up: those of two encodings are what `sra` makes, by which codecs are
/// judged.
constexpr std::uint32_t kMostEncodings = 2;

bool has_same_ways(const Plan& a, const Plan& b) {
  const auto way_of = [](const LayerPlan& entry) { return entry.stages.front().way; };
  return std::ranges::equal(a.layers, b.layers, {}, way_of, way_of);
}

Proposal alike(std::span<const Layer> layers, DensePolicy policy, const Codec& codec) {
  policy.way = Way{.codec = codec};
  Proposal proposal{codec == Way{}.codec
                        ? "all layers exactly"
                        : fmt::format("{} for all layers", policy.way.short_text()),
                    plan_for(layers, policy)};
  for (LayerPlan& entry : proposal.plan.layers) {
    std::string& reason = entry.stages.front().reason;
    if (reason == kAskedFor) reason = kOnTrial;
  }
  return proposal;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3g}", 1e3 * seconds); }

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
  Proposal selected{"a way of its own for every layer",
                    plan_for(layers, fixed, plan_of(workload, selection))};
  const auto foretell = [&](Proposal& each) {
    each.predicted_seconds =
        predict(workload, cluster, costs, ways_of(each.plan, workload, 0)).step_seconds;
    return each.predicted_seconds;
  };
  double shortest = std::numeric_limits<double>::infinity();
  for (Proposal& each : all) shortest = std::min(shortest, foretell(each));
  if (foretell(selected) < kWorthATrial * shortest) {
    shortest = selected.predicted_seconds;
    all.insert(all.begin() + 1, std::move(selected));
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

std::string outcome_of(std::span<const Proposal> proposals, const Trial& trial) {
  const std::size_t best = trial.best();
  const std::string& chosen = proposals[best].name;
  if (proposals.size() == 1) return fmt::format("{}: no codec takes any of them", chosen);
  std::string text =
      fmt::format("{}: {} ms a step", chosen, milliseconds(trial.step_seconds(best)));
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    if (i == best) continue;
    text += fmt::format("; {} {} ms", proposals[i].name, milliseconds(trial.step_seconds(i)));
  }
  return text;
}

std::string drift_of(double expected_seconds, double seconds) {
  return fmt::format("steps take {} ms instead of {}: looks for the best plan again",
                     milliseconds(seconds), milliseconds(expected_seconds));
}

void explain(Plan& plan, const std::string& reason) {
  for (LayerPlan& entry : plan.layers) {
    std::string& last = entry.stages.back().reason;
    if (last == kOnTrial) last = reason;
  }
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
