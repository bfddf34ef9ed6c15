// Whether all ranks are about to do the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradwire/communicator.h"

namespace gradwire::engine {

/// What one rank is about to set.
struct Answer {
  bool refuses = false;  ///< its plan is not fit for its layers
  std::uint64_t from_step = 0;
  std::uint64_t hash = 0;  ///< of its layers and their ways, as `Layers::hash_of` has it
};

/// The answers of all ranks, which call it together. Calls `while_waiting` as `ConnectOptions` say.
std::vector<Answer> gather_answers(Communicator& ranks, const Answer& own,
                                   const std::function<void()>& while_waiting);

/// Throws `Error(invalid_argument)` that names the ranks whose answer is not that of rank 0.
void check_alike(std::span<const Answer> answers);

}  // namespace gradwire::engine
