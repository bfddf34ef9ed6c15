#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"
#include "gradwire/random.h"

namespace gradwire::test {
namespace {

TEST(Randomk, chooses_by_the_documented_random_bits_whatever_the_rank) {
  const std::vector<float> x = gaussian(10'000);
  const RandomKey key{.seed = 4, .step = 3, .tensor = 2, .rank = 0};
  for (const std::uint64_t rank : {0, 1, 77}) {
    RandomKey own = key;
    own.rank = rank;
    const std::vector<float> decoded =
        pass("randomk:density=0.125", x, {.random = own, .first_element = 640});
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(decoded[i], random_bits(key, 640 + i) < 8192 ? x[i] : 0) << i;
    }
  }
}

TEST(Randomk, depends_on_seed_step_and_tensor) {
  const Tensor x(gaussian(1000), Dtype::f32);
  const Codec codec = Codec::parse("randomk:density=0.1");
  const auto bytes = encode(codec, x, {.random = {1, 2, 3, 4}});
  EXPECT_TRUE(encode(codec, x, {.random = {1, 2, 3, 5}}) == bytes);
  for (const RandomKey& other : {RandomKey{2, 2, 3, 4}, {1, 3, 3, 4}, {1, 2, 4, 4}}) {
    EXPECT_FALSE(encode(codec, x, {.random = other}) == bytes);
  }
}

TEST(Randomk, takes_the_chosen_numbers_and_a_small_header) {
  const std::vector<float> x = gaussian(100'000);
  for (const Dtype dtype : kDtypes) {
    const auto bytes = encode(Codec::parse("randomk:density=0.01"), Tensor(x, dtype)).size();
    const auto chosen = static_cast<double>(bytes - 28) / static_cast<double>(size_of(dtype));
    EXPECT_NEAR(chosen, 1000, 6 * std::sqrt(1000)) << name_of(dtype);
  }
}

TEST(Randomk, inverse_scale_is_unbiased_and_none_is_not) {
  constexpr int kSeeds = 2500;
  constexpr double kChance = 0.125;
  const std::vector<float> x = gaussian(1000, 5);
  for (const std::string scale : {"none", "inverse"}) {
    const Codec codec = Codec::parse("randomk:density=0.125,scale=" + scale);
    EXPECT_EQ(codec.traits().unbiased, scale == "inverse");
    std::vector<double> sum(x.size());
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto decoded = pass(codec, Tensor(x, Dtype::f32), {.random = {.seed = seed}});
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += decoded[i];
    }
    double worst = 0;  // in standard deviations of the mean
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double deviation = std::fabs(x[i]) * std::sqrt((1 - kChance) / kChance / kSeeds);
      worst = std::max(worst, std::fabs(sum[i] / kSeeds - x[i]) / deviation);
    }
    if (scale == "inverse") {
      EXPECT_LT(worst, 5);
    } else {
      EXPECT_GT(worst, 10);
    }
  }
}

TEST(Randomk, inverse_scale_keeps_large_numbers_finite) {
  const std::vector<float> x(1000, -FLT_MAX);
  for (const float value : pass("randomk:density=0.5,scale=inverse", x)) {
    EXPECT_TRUE(value == -FLT_MAX || value == 0);
  }
}

TEST(Randomk, bytes_cut_anywhere_are_refused) {
  std::vector<float> x = gaussian(500);
  x[77] = NAN;
  const Codec codec = Codec::parse("randomk:density=0.1");
  const std::vector<std::byte> payload = encode(codec, Tensor(x, Dtype::f32));
  for (std::size_t size = 0; size < payload.size(); ++size) {
    Tensor out(x.size(), Dtype::f32);
    ASSERT_EQ(codec.decode(std::span(payload).first(size), Dtype::f32, out.view()), Status::corrupt)
        << size;
  }
}

}  // namespace
}  // namespace gradwire::test
