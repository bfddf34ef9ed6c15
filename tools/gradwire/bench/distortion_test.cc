#include "bench/distortion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace gradwire::cli {
namespace {

TEST(Distortion, nothing_lost_is_zero_and_changed_zeros_are_infinite) {
  EXPECT_EQ(0, Distortion{}.nmse());
  EXPECT_EQ(0, Distortion{}.bits_per_element());
  Distortion changed;
  add_error(std::vector<float>{0, 0}, std::vector<float>{0, 1}, changed);
  EXPECT_TRUE(std::isinf(changed.nmse()));
}

TEST(Distortion, error_is_relative_to_the_energy_of_all_that_was_added) {
  Distortion sum;
  add_error(std::vector<float>{3, 4}, std::vector<float>{3, 3}, sum);
  Distortion more;
  add_error(std::vector<float>{5}, std::vector<float>{5}, more);
  sum += more;
  EXPECT_EQ(1.0 / 50, sum.nmse());
}

TEST(DistortionMeter, exact_codec_loses_nothing_of_any_dtype) {
  const std::vector<float> f32 = {1, -2.5F, 0, 1e-30F};
  const std::vector<std::uint16_t> half = {0x3c00, 0xc100, 0x0001};
  const Layer layers[] = {{1, {f32.data(), f32.size(), Dtype::f32}},
                          {2, {half.data(), half.size(), Dtype::f16}},
                          {3, {half.data(), half.size(), Dtype::bf16}},
                          {4, {nullptr, 0, Dtype::f32}}};
  const Distortion result = DistortionMeter().measure(Codec::parse("none"), layers, 0);
  EXPECT_EQ(10U, result.elements);
  EXPECT_EQ(0, result.squared_error);
  EXPECT_GT(result.energy, 7.25);
  EXPECT_GT(result.bytes, 16U + 6 + 6);
}

TEST(DistortionMeter, cast_loses_what_does_not_fit) {
  const std::vector<float> values = {1.0F + 0x1p-8F};  // rounds to 1 or 1 + 2^-7 in bf16
  const Layer layer{1, {values.data(), values.size(), Dtype::f32}};
  const Distortion result = DistortionMeter().measure(Codec::parse("bf16"), {&layer, 1}, 0);
  EXPECT_EQ(0x1p-16, result.squared_error);
}

}  // namespace
}  // namespace gradwire::cli
