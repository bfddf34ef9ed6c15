#include "calibrate/codec_costs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gradwire {
namespace {

std::vector<float> gaussian(std::size_t elements) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> numbers(elements);
  for (float& each : numbers) each = distribution(random);
  return numbers;
}

TEST(MeasureCodecs, has_what_each_codec_takes_and_sends) {
  const std::vector<float> numbers = gaussian(1 << 14);
  std::vector<float> room(numbers.size());
  const std::vector<Codec> codecs{Codec::parse("none"), Codec::parse("uniform:bits=4,bucket=128"),
                                  Codec::parse("grid:step=0.5")};
  std::vector<std::string> heard;
  const auto costs =
      measure_codecs(codecs, {numbers, room}, {.sizes = {1 << 10, 1 << 14}, .rounds = 2},
                     [&](std::string_view what) { heard.emplace_back(what); });
  ASSERT_EQ(costs.size(), codecs.size());
  EXPECT_EQ(heard.size(), 2 * codecs.size());
  for (const auto& [spec, codec] : costs) {
    EXPECT_EQ(codec.encode.points().size(), 2) << spec;
    EXPECT_GT(codec.encode.at(1 << 14), 0) << spec;
    EXPECT_GE(codec.decode.at(1 << 14), codec.decode.at(1 << 10)) << spec;
  }
  const auto of = [&](const Codec& codec) { return costs.at(codec.spec()); };
  EXPECT_NEAR(of(codecs[0]).bytes_per_element, 4, 0.1);
  EXPECT_NEAR(of(codecs[1]).bytes_per_element, 0.53, 0.03);  // 4 bits and two bf16 for 128
  EXPECT_LT(of(codecs[2]).bytes_per_element, 0.45);
  EXPECT_TRUE(of(codecs[0]).preparation.points().empty());
  EXPECT_FALSE(of(codecs[2]).preparation.points().empty());  // it is fitted to the whole tensor
}

TEST(MeasureCodecs, what_a_codec_sends_depends_on_the_numbers) {
  std::vector<float> room(1 << 12);
  const Codec codec = Codec::parse("grid:step=0.5");
  const auto bytes_of = [&](const std::vector<float>& numbers) {
    return measure_codecs({&codec, 1}, {numbers, room}, {.sizes = {1 << 12}, .rounds = 1})
        .at(codec.spec())
        .bytes_per_element;
  };
  EXPECT_LT(bytes_of(std::vector<float>(1 << 12)), 0.2 * bytes_of(gaussian(1 << 12)));
}

}  // namespace
}  // namespace gradwire
