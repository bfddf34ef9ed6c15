#include "adapt/layer_measurement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace gradwire::adapt {
namespace {

TEST(Measure, exact_codec_loses_nothing) {
  const std::vector<float> numbers = {1, -2.5F, 0};
  const Candidate none = measure(numbers, Codec::parse("none"));
  EXPECT_EQ(12, none.bytes);
  EXPECT_EQ(0, none.squared_error);
}

TEST(Measure, cast_loses_what_does_not_fit) {
  const std::vector<float> numbers = {1.0F + 0x1p-8F, 2};  // the first becomes 1 in bf16
  const Candidate bf16 = measure(numbers, Codec::parse("bf16"));
  EXPECT_EQ(4, bf16.bytes);
  EXPECT_EQ(0x1p-16, bf16.squared_error);
}

TEST(MeasureLayer, candidates_stand_from_the_fewest_bytes_on) {
  std::vector<float> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(static_cast<float>(std::sin(i)));
  const Codec codecs[] = {Codec::parse("uniform:bits=8"), Codec::parse("topk:density=0.01"),
                          Codec::parse("uniform:bits=2")};
  const Layer layer = measure_layer("sine", numbers, codecs, Codec::parse(kReference));
  EXPECT_EQ("sine", layer.name);
  EXPECT_EQ(1000U, layer.elements);
  EXPECT_NEAR(500, layer.energy, 1);
  ASSERT_EQ(3U, layer.candidates.size());
  EXPECT_EQ(codecs[1], layer.candidates[0].codec);
  EXPECT_EQ(codecs[0], layer.candidates[2].codec);
  EXPECT_GT(layer.reference_error, layer.candidates[2].squared_error);
  EXPECT_LT(layer.reference_error, layer.candidates[1].squared_error);
}

TEST(MeasureLayer, nothing_and_odd_numbers_are_measured) {
  const Codec codecs[] = {Codec::parse("uniform"), Codec::parse("grid")};
  const Layer empty = measure_layer("empty", {}, codecs, Codec::parse(kReference));
  EXPECT_EQ(0, empty.energy);
  EXPECT_EQ(0, empty.candidates[0].squared_error);
  const std::vector<float> odd(200, std::numeric_limits<float>::infinity());
  const Layer infinite = measure_layer("odd", odd, codecs, Codec::parse(kReference));
  EXPECT_FALSE(std::isfinite(infinite.energy));
}

}  // namespace
}  // namespace gradwire::adapt
