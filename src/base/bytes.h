// Little-endian numbers in byte buffers.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace gradwire {

static_assert(std::endian::native == std::endian::little,
              "gradwire copies numbers to the wire as they lie in memory");

template <typename T>
requires std::is_trivially_copyable_v<T>
inline T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
requires std::is_trivially_copyable_v<T>
inline void store(std::byte* to, const T& value) noexcept { std::memcpy(to, &value, sizeof(T)); }

template <std::unsigned_integral T>
constexpr T round_up(T value, T multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

template <std::unsigned_integral T>
constexpr T divide_up(T value, T divisor) noexcept {
  return value / divisor + (value % divisor != 0);
}

}  // namespace gradwire
