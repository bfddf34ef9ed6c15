// The counter-based generator, in the terms that kernels need.
//
// Element i of a tensor draws 16 bits. A 32-bit hash serves two elements: of each group of 32
// elements, the 16 hashes' low halves go to the first 16 elements and the high halves to the
// other 16. Vectors of 4, 8 or 16 lanes all draw whole groups without shuffling.
//
//   counter = (i / 32) * 16 + i % 16 (32 bits)      region = i / 2^33
//   hash    = hash_counter(counter, stream_key(key, region))
#pragma once

#include <cstdint>

#include "gradwire/random.h"

namespace gradwire {

/// What the vector code needs of a RandomKey: valid for the 2^33 elements of one region.
struct StreamKey {
  std::uint32_t start = 0;  // where the stream enters the Weyl sequence
  std::uint32_t odd = 1;
};

inline constexpr std::uint64_t kRegionElements = std::uint64_t{1} << 33;
inline constexpr std::uint32_t kGroupElements = 32;

constexpr std::uint64_t mix64(std::uint64_t x) noexcept {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Folds a RandomKey to the 64 bits that all its numbers depend on.
constexpr std::uint64_t fold(const RandomKey& key) noexcept {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  std::uint64_t folded = mix64(key.seed + kGolden);
  folded = mix64(folded ^ (key.step + 2 * kGolden));
  folded = mix64(folded ^ (key.tensor + 3 * kGolden));
  return mix64(folded ^ (key.rank + 4 * kGolden));
}

constexpr StreamKey stream_key(std::uint64_t folded, std::uint64_t element) noexcept {
  const std::uint64_t mixed = mix64(folded + element / kRegionElements);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32) | 1};
}

constexpr std::uint32_t counter_of(std::uint64_t element) noexcept {
  return static_cast<std::uint32_t>(element / kGroupElements * 16 + element % 16);
}

inline constexpr std::uint32_t kWeylStep = 0x9e3779b1;

/// A Weyl sequence through one multiplication. x -> x * (x + odd) maps two numbers to every even
/// one, so that both halves of the hash are exactly uniform over all starts.
constexpr std::uint32_t hash_counter(std::uint32_t counter, StreamKey key) noexcept {
  std::uint32_t x = counter * kWeylStep + key.start;
  x ^= x >> 16;
  x *= x + key.odd;
  return x ^ (x >> 16);
}

/// The 16 bits of an element, of a key that is folded once for many.
constexpr std::uint16_t draw(std::uint64_t folded, std::uint64_t element) noexcept {
  const std::uint32_t hash = hash_counter(counter_of(element), stream_key(folded, element));
  const bool second_half = (element / 16) % 2 != 0;
  return static_cast<std::uint16_t>(second_half ? hash >> 16 : hash);
}

}  // namespace gradwire
