// Finding the large numbers among many: the passes over memory that sparse codecs make.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "gradwire/tensor.h"

namespace gradwire::kernels {

/// Which numbers are looked for.
enum class Side : std::uint8_t { both, positive, negative };

inline constexpr std::uint32_t kLargestFiniteKey = 0x7f7fffff;

/// What numbers are ordered by: the bits of their magnitude, so that 0 < finite < infinite < NaN. A
/// number of the wrong side counts as 0, unless it is not finite.
constexpr std::uint32_t key_of(float x, Side side) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const bool negative = bits != magnitude;
  const bool wanted = side == Side::both || negative == (side == Side::negative);
  return wanted || magnitude > kLargestFiniteKey ? magnitude : 0;
}

/// A pass goes through memory in steps of this many elements, whose results stay in the cache.
inline constexpr std::size_t kSiftElements = 4096;

struct Sifted {
  std::size_t count;
  std::uint16_t at[kSiftElements];
  float values[kSiftElements];
};

/// Those of x, at most kSiftElements, with a key above `floor`, in order.
void sift(ConstTensorView x, Side side, std::uint32_t floor, Sifted& found) noexcept;

/// How many floors one pass compares with: all that three steps of a binary search may ask for.
inline constexpr std::size_t kFloors = 7;
using Floors = std::array<std::uint32_t, kFloors>;
using FloorCounts = std::array<std::uint64_t, kFloors>;

/// Adds how many keys of x, at most kSiftElements, are above each floor.
void count_above(ConstTensorView x, Side side, const Floors& floors, FloorCounts& counts) noexcept;

/// Of the finite keys, as floats.
struct KeySummary {
  double sum = 0;
  std::uint32_t largest = 0;
};

/// Adds x, at most kSiftElements.
void summarize(ConstTensorView x, Side side, KeySummary& summary) noexcept;

/// Where, among `count` elements (at most kSiftElements) from `first_element` on, random bits are
/// below `limit`. Returns how many they are; `at` has room for kSiftElements. `folded` is the key
/// of base/random_stream.h. The first element is a multiple of kGroupElements, and all are of one
/// region.
std::size_t pick(std::uint64_t folded, std::uint64_t first_element, std::size_t count,
                 std::uint32_t limit, std::uint16_t* at) noexcept;

}  // namespace gradwire::kernels
