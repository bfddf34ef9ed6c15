// Who sends what to whom in an all_reduce: decided by the bytes that a rank sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "gradwire/codec.h"

namespace gradwire {

/// Bytes that messages of all numbers are likely to take, of data and of sums.
struct Traffic {
  std::size_t data = 0;
  std::size_t sums = 0;

  void add(const Codec& codec, std::size_t count) noexcept {
    data += codec.expected_bytes(count);
    sums += codec.for_sums().expected_bytes(count);
  }
};

struct Route {
  std::string_view algorithm;
  std::size_t bytes;  ///< that a rank sends
};

/// Either everybody sends everything to everybody, or a share to every owner, who sends sums to
/// everybody. The former is one hop instead of two, and takes less where sums are much larger than
/// what is added up, as of sparse codecs on few ranks.
Route cheapest_route(const Traffic& traffic, std::uint32_t ranks) noexcept;

}  // namespace gradwire
