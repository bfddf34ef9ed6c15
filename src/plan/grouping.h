// Which tensors of one call are cut and summed up as one, and by which algorithm.
//
// Who sums up which part of a tensor changes the bits of its result, unless it travels exactly. So
// a tensor that loses something is cut by itself: its bits do not depend on what else is in the
// call, and PyTorch may regroup its buckets. Exact ones stand in one line, which is cut as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collective/schedule.h"
#include "gradwire/codec.h"

namespace gradwire {

/// One tensor of a call.
struct Traveller {
  Codec codec;
  std::string route{};  ///< as in `Way`; empty: whichever is cheapest
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;
};

/// Tensors that are cut as one.
struct Group {
  std::string algorithm{};
  std::vector<std::size_t> tensors{};  ///< their places in the call, in order
};

/// Of an all_reduce, at least one. `usual` is the algorithm of those that name none, or "auto".
std::vector<Group> group_for_sums(std::span<const Traveller> tensors, const std::string& usual,
                                  std::uint32_t ranks);

/// Of all other collectives: all tensors together. Throws `Error(invalid_argument)` when they name
/// different routes.
Group group_all(std::span<const Traveller> tensors, Collective collective);

}  // namespace gradwire
