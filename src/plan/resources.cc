#include "plan/resources.h"

#include <algorithm>

#include "gradwire/codec.h"

namespace gradwire {
namespace {

constexpr std::size_t kLargestBytes = 16;   // of an element in a lane: four, at most four times
constexpr std::uint32_t kMostThreads = 4;   // beyond that memory is the limit
constexpr std::uint32_t kOtherThreads = 2;  // the caller's, and the one that moves messages

std::size_t whole_slices(std::size_t elements) {
  return elements / kSliceAlignment * kSliceAlignment;
}

}  // namespace

std::size_t piece_elements(const PieceLimits& limits, bool sparse) noexcept {
  const std::size_t most = limits.lane_bytes / kLargestBytes;
  if (sparse && limits.asked == 0) return whole_slices(most);
  const std::size_t least = std::size_t{1} << (limits.in_memory ? 16 : 19);
  const std::size_t per_rank = std::size_t{1} << (limits.in_memory ? 13 : 15);
  const std::size_t usual = std::max(least, limits.ranks * per_rank);
  const std::size_t wanted = limits.asked > 0 ? limits.asked : usual;
  return std::max(kSliceAlignment, whole_slices(std::min(wanted, most)));
}

std::uint32_t codec_threads(std::uint32_t cores, std::uint32_t asked) noexcept {
  if (asked > 0) return asked - 1;
  return cores > kOtherThreads ? std::min(cores - kOtherThreads, kMostThreads) : 0;
}

}  // namespace gradwire
