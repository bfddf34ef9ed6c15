// What the ranks of a traced communicator agree on before the first operation.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "gradwire/store.h"
#include "trace/recorder.h"
#include "transport/router.h"

namespace gradwire::engine {

struct Agreement {
  trace::Origin origin;
  /// Ranks that were done with everything meanwhile and left, and why; the router does not tell of
  /// them again.
  std::map<std::uint32_t, std::string> lost;
};

/// Rank 0 asks every other rank for its clock, several times, and believes the answer that came
/// back soonest: the error is at most half of that time, and none on a host, whose processes share
/// a clock. It draws the communicator's number, too. All ranks call it together. Throws
/// `Error(peer_failed)` and `Error(timeout)`.
Agreement agree_on_origin(Router& router, std::uint32_t rank, std::uint32_t size,
                          Deadline deadline);

/// Of ranks that share a clock: all of a process, or one alone.
std::uint64_t draw_communicator_number();

}  // namespace gradwire::engine
