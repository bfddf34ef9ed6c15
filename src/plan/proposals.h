// Plans that are worth trying in a job, and what follows one another in it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/plan.h"
#include "plan/load.h"
#include "plan/observation.h"
#include "plan/policies.h"
#include "plan/trial.h"

namespace gradwire {

/// Codecs that the planner takes where nobody names one: they train as well as exact gradients do
/// (docs/codecs.md), need no feedback, and differ in what they take of links and of processors.
std::vector<Codec> usual_codecs();

/// The reason of ways that are tried, until there is a better one.
inline constexpr const char* kOnTrial = "on trial";

struct Proposal {
  std::string name;              ///< in words: "uniform:bits=4,bucket=128 for all layers"
  Plan plan;                     ///< from step 0 on
  double predicted_seconds = 0;  ///< of a step; 0: nobody knows
};

/// The exact plan first, then one for each usual codec. `fixed` has what does not depend on the
/// planner: patterns of exact layers and of those with a codec of their own.
std::vector<Proposal> proposals(std::span<const Layer> layers, const DensePolicy& fixed);

/// Also the one that the planner selects, and without those whose predicted steps are far longer
/// than the shortest; the exact plan stays.
std::vector<Proposal> proposals(std::span<const Layer> layers, const DensePolicy& fixed,
                                const Observation& observation, const Cluster& cluster);

/// For other ranks. `parse_proposals` throws as `Plan::parse` does.
std::string text_of(std::span<const Proposal> proposals);
std::vector<Proposal> parse_proposals(std::string_view text);

/// What a trial has found out, in words.
std::string outcome_of(std::span<const Proposal> proposals, const Trial& trial);
/// That steps take longer or shorter than expected.
std::string drift_of(double expected_seconds, double seconds);

/// Gives ways that were on trial their reason.
void explain(Plan& plan, const std::string& reason);

/// Layers go as `next` says from a step on. In `plan` a layer's stages follow one another: what
/// does not change its way gets its new reason.
void change(Plan& plan, std::uint64_t from_step, const Plan& next);

}  // namespace gradwire
