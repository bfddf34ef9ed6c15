// What a job has seen of its own steps, as the planner's inputs.
//
// Of some of its first steps every rank notes when gradients are ready; in some of these it
// exchanges nothing until the last one is, and then all of them, exactly. So it sees computing and
// exchanging alone, and in the other steps beside each other.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/plan.h"
#include "plan/costs.h"
#include "plan/load.h"
#include "plan/policies.h"
#include "plan/workload.h"

namespace gradwire {

/// One step on one rank. Seconds after the first gradients were handed over.
struct StepTimes {
  std::vector<double> ready_seconds{};  ///< by layer; less than 0: it had no gradient
  double computed_seconds = 0;          ///< the last gradients were handed over
  double exchanged_seconds = 0;         ///< the last sums had come
  double step_seconds = 0;              ///< the next step's first gradients were handed over
  double processor_seconds = 0;         ///< of all threads, from `computed` to `exchanged`
};

/// One rank, or all of them together.
struct Observation {
  Workload workload{};           ///< times without exchanges; backward begins with a gradient
  double exchange_seconds = 0;   ///< of all tensors, exactly, with no computing beside it
  double processor_seconds = 0;  ///< of a rank, in that time
  double latency_seconds = 0;    ///< of a message
  double beside_seconds = 0;     ///< backward with exchanges beside it
  Costs costs{};                 ///< of codecs; links are not known yet
};

/// `alone` are steps that first computed and then exchanged, `beside` those that did both at once:
/// at least one of each.
Observation observe(std::span<const Layer> layers, std::span<const StepTimes> alone,
                    std::span<const StepTimes> beside);

/// For other ranks. `parse_observation` throws as the readers of its parts do.
std::string text_of(const Observation& observation);
Observation parse_observation(std::string_view text);

/// Of all ranks: times are means, costs those of the slowest, as all wait for it.
Observation joined(std::span<const Observation> ranks);

/// With the links by which a forecast of the exchange that was seen takes as long as it did, and
/// with the interference that was seen. Between hosts where there are several: the links inside
/// are then those of the preset "cpu".
Costs fitted_costs(const Observation& observation, const Cluster& cluster);

}  // namespace gradwire
