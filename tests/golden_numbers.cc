#include "golden_numbers.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/random_stream.h"

namespace gradwire::golden {
namespace {

constexpr RandomKey kKey{.seed = 1, .step = 2, .tensor = 3, .rank = 4};

float bell(std::uint64_t seed, std::size_t i) {
  const std::uint64_t hash = mix64(seed * 0x9e3779b97f4a7c15u + i);
  std::int32_t sum = 0;
  for (int part = 0; part < 4; ++part)
    sum += static_cast<std::int32_t>(hash >> (16 * part) & 0xffff);
  return static_cast<float>(sum - 2 * 65535) / 37837.0f;
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Floats as elements of `dtype`, by the codecs that do nothing else.
Bytes narrowed(const Floats& x, Dtype dtype) {
  if (dtype == Dtype::f32 || x.empty()) return bytes_of(x);
  const Codec codec = Codec::parse(dtype == Dtype::f16 ? "fp16" : "bf16");
  Bytes bytes(codec.max_encoded_bytes(x.size()));
  const Encoded encoded = codec.encode({x.data(), x.size(), Dtype::f32}, {}, bytes);
  bytes.resize(encoded.bytes);
  return bytes;
}

}  // namespace

Floats bells(std::uint64_t seed, std::size_t count) {
  Floats x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = bell(seed, i);
  return x;
}

Floats heavy_tailed(std::uint64_t seed, std::size_t count) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = std::ldexp(x[i], std::countr_zero(mix64(seed + i) | std::uint64_t{1} << 12));
  }
  return x;
}

Floats uneven_blocks(std::uint64_t seed, std::size_t count, int exponents) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t hash = mix64(seed + i / 128);
    const int exponent = static_cast<int>(hash % static_cast<unsigned>(exponents)) - exponents / 2;
    x[i] = hash >> 32 & 3 ? std::ldexp(x[i], exponent) : 0.0f;
  }
  return x;
}

Floats mixed_widths(std::uint64_t seed, std::size_t count, unsigned one_in, float width) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (mix64(seed + i) % one_in == 0) x[i] *= width;
  }
  return x;
}

Floats thinned(Floats x, unsigned one_in) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (mix64(i) % one_in != 0) x[i] = 0;
  }
  return x;
}

Floats widening_blocks(std::uint64_t seed, std::size_t count) {
  constexpr float kQuarters[] = {1.0f, 1.1892071f, 1.4142135f, 1.6817929f};
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const int block = static_cast<int>(i / 128);
    x[i] = std::ldexp(x[i] * kQuarters[block % 4], block / 4 - 3);
  }
  return x;
}

Floats sparse_steps(std::size_t count, std::size_t every, std::vector<int> steps) {
  Floats x(count);
  for (std::size_t i = 0, k = 0; i < count; i += every, ++k) {
    x[i] = 0.5f * static_cast<float>(steps[k % steps.size()]);
  }
  return x;
}

Floats some_large(std::uint64_t seed, std::size_t count) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool large = mix64(seed + i / 40) % 50 == 0 || mix64(seed + 3 * i) % 200 == 0;
    x[i] = std::ldexp(x[i], large ? 0 : -20);
  }
  return x;
}

Floats hard_buckets() {
  const Floats kinds[] = {
      {0, 0, 0, 0, 0, 0, 0, 0},
      {-0.0f, 0, -0.0f, 0, 1, -1, -0.0f, 0},
      {7, 7, 7, 7, 7, 7, 7, 7},
      {1, 2, NAN, 4, 5, 6, 7, 8},
      {1, 2, 3, kInfinity, 5, 6, 7, 8},
      {1, 2, 3, 4, -kInfinity, 6, 7, 8},
      {kLargest, -kLargest, 1, -1, 0, 3e38f, -3e38f, 1e38f},
      {kLargest, kLargest, kLargest, kLargest, 3e38f, 3e38f, 3e38f, 3e38f},
      {kSmallest, -kSmallest, 0, 2 * kSmallest, 1e-40f, -1e-40f, 1e-38f, 0},
      {1e-30f, 2e-30f, 3e-30f, -4e-30f, 5e-30f, 6e-30f, 7e-30f, 8e-30f},
      {1e30f, 1e-30f, -1e30f, -1e-30f, 1, -1, 1e10f, 1e-10f},
      {1e38f, 1e-38f, 2e38f, 0, 0, 0, 0, -1e37f},
  };
  Floats x;
  for (const Floats& kind : kinds) x.insert(x.end(), kind.begin(), kind.end());
  return x;
}

Floats with(Floats x, const std::vector<std::pair<std::size_t, float>>& changes) {
  for (const auto& [at, value] : changes) x[at] = value;
  return x;
}

Bytes special_halves() {
  std::vector<std::uint16_t> values;
  for (const int sign : {0, 0x8000}) {
    for (const int bits : {0, 1, 2, 0x7f, 0x80, 0x3ff, 0x400, 0x3c00, 0x3f80, 0x7bff, 0x7c00,
                           0x7c01, 0x7dff, 0x7e00, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff}) {
      values.push_back(static_cast<std::uint16_t>(sign | bits));
    }
  }
  return bytes_of(values);
}

GoldenSegment segment(const std::string& spec, const Floats& x, Dtype dtype,
                      std::uint64_t first_element) {
  return {spec,
          dtype,
          narrowed(x, dtype),
          {.random = kKey, .first_element = first_element, .turn = kKey.step}};
}

}  // namespace gradwire::golden
