// What a step takes when every tensor goes a way that somebody has chosen.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/plan.h"
#include "plan/chain.h"
#include "plan/costs.h"
#include "plan/load.h"
#include "plan/workload.h"

namespace gradwire {

struct Prediction {
  double step_seconds = 0;
  double exposed_seconds = 0;                     ///< in which nothing is computed
  std::array<double, kResources> busy_seconds{};  ///< by `Resource`, of codecs and messages
};

/// `ways` are those of the workload's tensors, in their order. A way without a route takes the one
/// that the engine would. Throws `Error(invalid_argument)` for codecs that were not measured, and
/// for routes that no forecast knows.
Prediction predict(const Workload& workload, const Cluster& cluster, const Costs& costs,
                   std::span<const Way> ways);

/// Those that a plan has for the workload's tensors at a step.
std::vector<Way> ways_of(const Plan& plan, const Workload& workload, std::uint64_t step);

}  // namespace gradwire
