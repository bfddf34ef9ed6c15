// A step of training as it is predicted for ways that somebody has decided on: how long it takes,
// what it keeps busy, and what is done when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/plan.h"
#include "gradwire/way.h"
#include "plan/costs.h"
#include "plan/forecast.h"
#include "plan/load.h"
#include "plan/workload.h"

namespace gradwire {

inline constexpr std::uint64_t kLastStep = ~std::uint64_t{0};  // whenever that is

/// Those that a plan has for the workload's tensors at a step.
std::vector<Way> ways_of(const Plan& plan, const Workload& workload, std::uint64_t step);

struct Prediction {
  double step_seconds = 0;
  double exposed_seconds = 0;                     ///< of it, in which nothing is computed
  std::array<double, kResources> busy_seconds{};  ///< of it, by resource
  /// That a rank sends, on average, to ranks of its host and to others.
  double bytes_inside = 0;
  double bytes_between = 0;
};

/// `ways` has one for each tensor; small tensors take that of the large one that they travel with.
/// A way without a route takes the one
/// that the engine would. Throws `Error(invalid_argument)`
/// for a codec that was not measured, and a route that does not exist.
Prediction predict(const Workload& workload, const Cluster& cluster, const Costs& costs,
                   std::span<const Way> ways);

/// Something that is done in a predicted step.
struct PredictedSpan {
  enum class Work : std::uint8_t {
    computing,
    preparing,
    encode,
    decode,
    inside,    ///< a message travels inside a host
    send,      ///< it leaves a host
    receive,   ///< it comes to a host
    handling,  ///< the processor hands messages to the system
  };
  Work work;
  Interval interval;         ///< its tensor is one of the workload
  std::size_t more_tensors;  ///< small ones that travel with it
  double bytes;              ///< of messages: what the busiest rank or host sends or receives
};

/// All that is done in the step that `predict` predicts, in the order in which it ends. Throws the
/// same.
std::vector<PredictedSpan> predicted_spans(const Workload& workload, const Cluster& cluster,
                                           const Costs& costs, std::span<const Way> ways);

}  // namespace gradwire
