// A rank or none, as a number that travels.
#pragma once

#include <cstdint>
#include <optional>

namespace gradwire {

constexpr std::uint32_t pack_rank(std::optional<std::uint32_t> rank) noexcept {
  return rank ? *rank + 1 : 0;
}
constexpr std::optional<std::uint32_t> unpack_rank(std::uint32_t packed) noexcept {
  return packed > 0 ? std::optional(packed - 1) : std::nullopt;
}

}  // namespace gradwire
