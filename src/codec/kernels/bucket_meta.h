// A bucket's description: what is measured of its numbers, how that is rounded, and how it travels.
// Plain float arithmetic, the same for every instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "codec/spec.h"

namespace gradwire::kernels {

/// A bucket ready for its kernels. `prescale` is a power of two that brings extreme numbers into
/// the range where products and reciprocals neither overflow nor vanish; it is 1 for all others.
struct Bucket {
  float low;     // uniform: minimum
  float scale;   // uniform: unit; exponential: norm; sign: mean. NaN: the bucket is not finite
  float factor;  // what numbers are multiplied with to get levels; 0 when all are equal
  float prescale;
};

struct Range {
  float low;
  float high;
  bool finite;
};

/// Levels are computed in 65536ths. A little less than that many keeps the largest number of a
/// bucket from being rounded beyond the top level, whatever the last bits of the floats involved.
inline constexpr float kLevelParts = 65536.0f * (1 - 0x1p-21f);

inline constexpr float kTooSmall = 0x1p-100f;
inline constexpr float kTooLarge = 0x1p+120f;

inline float prescale_for(float magnitude) {
  if (magnitude < kTooSmall) return 0x1p+90f;
  return magnitude > kTooLarge ? 0x1p-4f : 1.0f;
}

/// The next bf16 that is not below x, or x itself as a float; x is not negative.
inline float round_meta_up(float x, Meta meta) {
  if (meta == Meta::fp32) return x;
  const std::uint32_t bits = (std::bit_cast<std::uint32_t>(x) + 0xffff) & 0xffff0000u;
  return std::bit_cast<float>(std::min(bits, 0x7f7f0000u));
}

/// The last bf16 that is not above x, or x itself as a float.
inline float round_meta_down(float x, Meta meta) {
  if (meta == Meta::fp32) return x;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t away = (bits & 0x80000000u) != 0 ? 0xffff : 0;
  return std::bit_cast<float>(std::min((bits + away) & 0xffff0000u, 0xff7f0000u));
}

inline Bucket not_finite() { return {NAN, NAN, 0, 1}; }

inline Bucket uniform_bucket(const Range& range, int levels, Meta meta) {
  if (!range.finite) return not_finite();
  const float low = round_meta_down(range.low + 0.0f, meta);  // + 0 makes -0 into 0
  const float top = static_cast<float>(levels);
  float unit = (range.high - low) / top;
  if (unit > FLT_MAX)
    unit = std::min(range.high / top - low / top, FLT_MAX);  // the width overflowed
  unit = round_meta_up(std::max(0.0f, unit), meta);          // this order makes -0 into 0
  if (unit == 0) return {low, unit, 0, 1};                   // all equal: level 0
  const float reach = std::max(std::fabs(low), std::fabs(range.high));
  const float prescale = prescale_for(unit < kTooSmall ? unit : std::max(unit, reach));
  return {low, unit, kLevelParts / (unit * prescale), prescale};
}

inline Bucket magnitude_bucket(float magnitude, Meta meta) {
  const float scale = round_meta_up(magnitude, meta);
  const float prescale = prescale_for(scale);
  return {0, scale, scale > 0 ? 1.0f / (scale * prescale) : 0.0f, prescale};
}

inline void store_meta(std::byte*& to, float value, Meta meta) {
  if (meta == Meta::fp32) {
    store(to, value);
    to += 4;
  } else {
    const bool nan = std::isnan(value);
    store(to, nan ? std::uint16_t{0x7fc0}
                  : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    to += 2;
  }
}

inline float load_meta(const std::byte*& from, Meta meta) {
  if (meta == Meta::fp32) {
    from += 4;
    return load<float>(from - 4);
  }
  from += 2;
  return std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(from - 2)} << 16);
}

inline constexpr std::size_t kTile =
    2048;  // numbers in flight: codes and scratch stay in the first cache
static_assert(kTile % kGroupElements == 0);
inline constexpr std::size_t kMaxTileBuckets = kTile / kGroupElements;

}  // namespace gradwire::kernels
