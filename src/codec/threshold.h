// The magnitude above which a layer has a given number of elements: the hard part of top-k.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "codec/kernels/sift.h"
#include "gradwire/tensor.h"

namespace gradwire {

/// Ways to find it, indices into kSelects; also what headers carry. All but `trimmed` and `search`,
/// which are RedSync's, are ours. Passes are those over memory, for numbers as gradients have them.
///
///   bracket  within 1/64 of the count, one pass: a sample brackets the threshold, a histogram of
///            what lies inside finds it
///   exact    the count, two passes: the same, then a histogram of the bin that the first one found
///   trimmed  the count, four passes: mean, maximum, and the first of five thresholds between them
///            that leaves enough candidates; then as `exact` among these
///   search   between half and twice the count, two to five passes: a binary search between mean
///            and maximum, three steps in a pass
enum class Select : std::uint8_t { bracket = 0, exact = 1, trimmed = 2, search = 3 };
inline constexpr std::string_view kSelects[] = {"bracket", "exact", "trimmed", "search"};

/// Elements with a larger key are taken, and of those that have this very key a share of
/// ties / 65536, by the random bits of each. Zeros never are; numbers that are not finite always
/// are.
struct Threshold {
  std::uint32_t key;  // at most kernels::kLargestFiniteKey
  std::uint16_t ties;
};

std::uint64_t count_of(std::span<const ConstTensorView> layer) noexcept;

/// For `wanted` elements, at least 1, of one side of a layer that is not empty. A layer in which
/// fewer are not zero gives all of these; one of zeros gives a threshold that takes no finite
/// number. Does not allocate; takes 100 KiB of stack.
Threshold find_threshold(std::span<const ConstTensorView> layer, kernels::Side side,
                         std::uint64_t wanted, Select select) noexcept;

}  // namespace gradwire
