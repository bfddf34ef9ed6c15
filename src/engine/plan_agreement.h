// Whether all ranks are about to set the same plan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/layers.h"
#include "gradwire/communicator.h"

namespace gradwire::engine {

/// What one rank is about to set.
struct Answer {
  std::string refusal{};  ///< why its plan is not fit for its layers; empty: it is
  std::uint64_t from_step = 0;
  PlanHash hash{};
};

/// The answers of all ranks, which call it together. Calls `while_waiting` as `ConnectOptions` say.
std::vector<Answer> gather_answers(Communicator& ranks, const Answer& own,
                                   const std::function<void()>& while_waiting);

/// Throws `Error(invalid_argument)` that names the ranks whose step or layers are not those of rank
/// 0, or who refuse.
void check_alike(std::span<const Answer> answers);

/// The same where their ways are not those of rank 0: with the first layer that travels otherwise.
/// If so, the ranks tell one another their own ways.
void check_same_ways(Communicator& ranks, std::span<const Answer> answers,
                     std::span<const LayerWays> own, const std::function<void()>& while_waiting);

}  // namespace gradwire::engine
