// How long a schedule's numbers and messages are needed, for whoever executes it.
#pragma once

#include <vector>

#include "collective/schedule.h"

namespace gradwire {

struct Lifetimes {
  /// By chunk: input, sum and output are never needed at the same time and may be the same memory,
  /// where `load` and `store` have nothing to do.
  std::vector<bool> in_one_place;
  /// By step: the message in its slot is not needed afterwards.
  std::vector<bool> last_use;
  /// By step: how often its message is sent in all, at the step that encodes it or uses it first,
  /// or receives it if it is only passed on; 0 at all other steps.
  std::vector<std::uint32_t> sends;
  /// By chunk: the last step that keeps something of it, or has nothing of it kept any more.
  std::vector<std::size_t> last_kept;
  /// By step: it keeps what a message lacks that counts as this rank's error.
  std::vector<bool> measured;
};

Lifetimes lifetimes_of(const Schedule& schedule);

/// In how many of the messages that are made or passed on a chunk is, at most.
std::uint32_t most_copies(const Schedule& schedule);

}  // namespace gradwire
