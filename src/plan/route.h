// Who sends what to whom in an all_reduce: decided by the bytes that a rank sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "collective/schedule.h"
#include "gradwire/codec.h"
#include "gradwire/plan.h"

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

/// What a rank sends when `bytes` go to every other rank, as in a gather; or when others have as
/// many for each owner, as before a scattered sum.
constexpr std::uint64_t bytes_to_all(std::uint64_t bytes, std::uint64_t ranks) noexcept {
  return bytes * (ranks - 1);
}

/// What a rank sends of `numbers` and `sums` bytes when every rank owns an equal share: all numbers
/// but its own share's to their owners, and its share's sums to all others.
constexpr std::uint64_t bytes_by_owners(std::uint64_t numbers, std::uint64_t sums,
                                        std::uint64_t ranks) noexcept {
  return bytes_to_all(numbers + sums, ranks) / ranks;
}

/// What a rank sends when `bytes` are summed exactly: by it, compression is measured.
constexpr std::uint64_t exact_bytes(std::uint64_t bytes, std::uint64_t ranks) noexcept {
  return bytes_by_owners(bytes, bytes, ranks);
}

/// Either everybody sends everything to everybody, or a share to every owner, who sends sums to
/// everybody. The former is one hop instead of two, for few numbers; and it takes less where sums
/// are much larger than what is added up, as of sparse codecs on few ranks.
Route cheapest_route(const Traffic& traffic, std::uint32_t ranks) noexcept;

/// Throws `Error(invalid_argument)` for a plan with a route that these ranks cannot take, and names
/// its layers.
void check_routes(const Plan& plan, const Ranks& ranks);

}  // namespace gradwire
