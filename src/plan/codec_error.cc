#include "plan/codec_error.h"

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

namespace gradwire {
namespace {

constexpr std::size_t kNumbers = std::size_t{1} << 16;

/// By Box and Muller, as `std::normal_distribution` differs between libraries.
std::vector<float> gaussian_numbers() {
  std::mt19937 random(1);
  const auto uniform = [&] { return (random() + 0.5) / 4294967296.0; };
  std::vector<float> numbers(kNumbers);
  for (float& number : numbers) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    number = static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
  return numbers;
}

}  // namespace

double codec_error(const Codec& codec) {
  const std::vector<float> numbers = gaussian_numbers();
  const ConstTensorView view{numbers.data(), kNumbers, Dtype::f32};
  const Codec fitted = codec.fit(view);
  std::vector<std::byte> bytes(fitted.max_encoded_bytes(kNumbers));
  const Encoded done = fitted.encode(view, {.random = {.seed = 1}}, bytes);
  check(done.status);
  std::vector<float> decoded(kNumbers);
  check(fitted.decode(std::span(bytes).first(done.bytes), Dtype::f32,
                      {decoded.data(), kNumbers, Dtype::f32}));
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < kNumbers; ++i) {
    const double number = numbers[i], error = decoded[i] - number;
    lost += error * error;
    all += number * number;
  }
  return lost / all;
}

}  // namespace gradwire
