// Randomness is an argument. Every random number gradwire uses is a pure function of a `RandomKey`
// and the element's index in its tensor, so a step gives the same bytes whatever the thread count,
// the chunking or the instruction set.
#pragma once

#include <cstdint>

namespace gradwire {

/// Who draws. Two different keys give independent streams.
struct RandomKey {
  std::uint64_t seed = 0;    ///< the job's
  std::uint64_t step = 0;    ///< of training
  std::uint64_t tensor = 0;  ///< which tensor, e.g. a hash of its name
  std::uint64_t rank = 0;    ///< whose gradient
};

/// The 16 random bits that element `index` of a tensor uses under `key`. The specification: vector
/// code draws the same bits.
std::uint16_t random_bits(const RandomKey& key, std::uint64_t index) noexcept;

}  // namespace gradwire
