#include "tensor/tensor_test_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/bytes.h"

namespace gradwire::test {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

float widen_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 0x3ff;
  const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31 && mantissa != 0) {
    return std::bit_cast<float>((bits & 0x8000u) << 16 | 0x7fc00000u |
                                std::uint32_t(mantissa) << 13);
  }
  if (exponent == 31) return sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

std::uint16_t narrow_f16(float x) {
  const auto sign = static_cast<std::uint16_t>(bits_of(x) >> 16 & 0x8000);
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00 | (bits_of(x) >> 13 & 0x3ff));
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= 65520) return sign | 0x7c00;  // what rounds to 65536
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | ((exponent + 14) * 1024 + units));
}

std::uint16_t narrow_bf16(float x) {
  const std::uint32_t high = bits_of(x) >> 16;
  const std::uint32_t low = bits_of(x) & 0xffff;
  if (std::isnan(x)) return static_cast<std::uint16_t>(high | 0x40);
  const bool up = low > 0x8000 || (low == 0x8000 && high % 2 != 0);
  return static_cast<std::uint16_t>(high + (up ? 1 : 0));
}

template <typename Draw>
std::vector<float> drawn(std::size_t count, std::uint64_t seed, float scale, Draw draw) {
  std::mt19937_64 random(seed);
  std::vector<float> x(count);
  for (float& value : x) value = scale * static_cast<float>(draw(random));
  return x;
}

}  // namespace

float widen(std::uint16_t bits, Dtype dtype) {
  if (dtype == Dtype::f16) return widen_f16(bits);
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::uint16_t narrow(float x, Dtype dtype) {
  return dtype == Dtype::f16 ? narrow_f16(x) : narrow_bf16(x);
}

// ---------------------------------------------------------------------------------------------

Tensor::Tensor(std::span<const float> values, Dtype dtype) : Tensor(values.size(), dtype) {
  for (std::size_t i = 0; i < count_; ++i) {
    std::byte* const to = bytes_.data() + i * size_of(dtype);
    if (dtype == Dtype::f32) {
      store(to, values[i]);
    } else {
      store(to, narrow(values[i], dtype));
    }
  }
}

float Tensor::operator[](std::size_t i) const {
  const std::byte* const from = bytes_.data() + i * size_of(dtype_);
  return dtype_ == Dtype::f32 ? load<float>(from) : widen(load<std::uint16_t>(from), dtype_);
}

std::vector<float> Tensor::floats() const {
  std::vector<float> values(count_);
  for (std::size_t i = 0; i < count_; ++i) values[i] = (*this)[i];
  return values;
}

std::vector<float> gaussian(std::size_t count, std::uint64_t seed, float scale) {
  return drawn(count, seed, scale, std::normal_distribution<double>());
}

std::vector<float> laplace(std::size_t count, std::uint64_t seed, float scale) {
  return drawn(count, seed, scale,
               [exponential = std::exponential_distribution<double>()](auto& random) mutable {
                 return (random() % 2 == 0 ? 1 : -1) * exponential(random);
               });
}

std::vector<float> student_t3(std::size_t count, std::uint64_t seed, float scale) {
  return drawn(count, seed, scale, std::student_t_distribution<double>(3));
}

std::vector<float> sparse(std::size_t count, std::uint64_t seed, float scale) {
  return drawn(count, seed, scale,
               [normal = std::normal_distribution<double>()](auto& random) mutable {
                 return random() % 20 == 0 ? normal(random) : 0;
               });
}

std::vector<float> gradient_like(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> decades(-6, 1);
  std::vector<float> x;
  x.reserve(count);
  while (x.size() < count) {
    const std::size_t length = std::min<std::size_t>(1 + random() % 300, count - x.size());
    const float scale = std::pow(10.0f, decades(random));
    const std::uint64_t kind = random() % 20;
    for (std::size_t i = 0; i < length; ++i) {
      float value = scale * normal(random);
      if (random() % 500 == 0) value *= 1000;
      if (kind < 2) value = 0;
      if (kind == 2) value = scale;
      if (kind == 3 && i % 7 != 0) value = -0.0f;
      x.push_back(std::clamp(value, -6e4f, 6e4f));  // finite in every dtype
    }
  }
  return x;
}

double nmse(std::span<const float> x, std::span<const float> decoded) {
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - decoded[i];
    error += difference * difference;
    energy += static_cast<double>(x[i]) * x[i];
  }
  return error / energy;
}

}  // namespace gradwire::test
