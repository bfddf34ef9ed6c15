// How an operation is cut into pieces that lanes can hold.
#pragma once

#include "engine/operation.h"

namespace gradwire::engine {

/// The cut of `operation`, whose items, layout and routine are complete, into pieces of `wanted`
/// elements, a multiple of `kSliceAlignment`; or of fewer, where a lane of `lane_bytes` might not
/// hold the messages that a rank makes of a piece. `region` as in `Cut`. It depends on nothing but
/// counts, codecs, algorithm and lanes, which are the same on all ranks, and so is the cut.
Cut cut_for_lanes(const Operation& operation, std::size_t wanted, std::size_t region,
                  std::size_t lane_bytes);

}  // namespace gradwire::engine
