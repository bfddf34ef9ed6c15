// Who sends what to whom in an all_reduce: decided by the bytes that a rank sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gradwire/codec.h"

namespace gradwire {

/// Bytes that all numbers take, and messages of them and of their sums are likely to.
struct Traffic {
  std::size_t numbers = 0;
  std::size_t data = 0;
  std::size_t sums = 0;

  void add(const Codec& codec, std::size_t count, Dtype dtype = Dtype::f32) noexcept {
    numbers += count * size_of(dtype);
    data += codec.expected_bytes(count);
    sums += codec.for_sums().expected_bytes(count);
  }
};

struct Route {
  std::string_view algorithm;
  std::size_t bytes;  ///< that a rank sends
};

/// Either everybody sends everything to everybody, or a share to every owner, who sends sums to
/// everybody. The former is one hop instead of two, for few numbers; and it takes less where sums
/// are much larger than what is added up, as of sparse codecs on few ranks.
Route cheapest_route(const Traffic& traffic, std::uint32_t ranks) noexcept;

}  // namespace gradwire
