// Codecs that say so are unbiased: the mean of a decoded number over seeds is the encoded number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codec/codec_test_bounds.h"
#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

constexpr int kSeeds = 2500;

/// Mean and variance of the decoded values of each element, over seeds.
struct Moments {
  std::vector<double> mean, variance;
};

Moments over_seeds(const Codec& codec, const Tensor& x) {
  std::vector<double> sum(x.count()), squares(x.count());
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<float> decoded = pass(codec, x, {.random = {.seed = seed}});
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const double error = static_cast<double>(decoded[i]) - x[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  Moments moments{sum, squares};
  for (std::size_t i = 0; i < sum.size(); ++i) {
    moments.mean[i] = sum[i] / kSeeds;
    moments.variance[i] = squares[i] / kSeeds - moments.mean[i] * moments.mean[i];
  }
  return moments;
}

/// How many standard deviations the mean error of the worst element is away from 0. A level that is
/// drawn less than five times in all seeds says little about the variance, which is why that has a
/// floor.
double worst_bias(const Codec& codec, std::span<const float> values) {
  const Tensor x(values, Dtype::f32);
  const Moments moments = over_seeds(codec, x);
  const std::vector<Bound> levels = bounds(codec, values);
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double floor = levels[i].distance * levels[i].distance * 5 / kSeeds;
    const double deviation =
        std::sqrt(std::max(moments.variance[i], floor) / kSeeds) + levels[i].slack;
    worst = std::max(worst, std::fabs(moments.mean[i]) / deviation);
  }
  return worst;
}

std::vector<float> mixed_scales(std::size_t count) {
  std::vector<float> x = gaussian(count, 21);
  for (std::size_t i = 0; i < count; ++i) x[i] *= std::exp2(static_cast<float>(i / 100 % 7) - 3);
  return x;
}

class Unbiasedness : public testing::TestWithParam<const char*> {};

TEST_P(Unbiasedness, mean_over_seeds_is_the_number) {
  const Codec codec = Codec::parse(GetParam());
  ASSERT_TRUE(codec.traits().unbiased);
  EXPECT_LT(worst_bias(codec, mixed_scales(500)), 5);
  EXPECT_LT(worst_bias(codec, mixed_scales(4500)), 5.5) << "of nine times as many elements";
}

INSTANTIATE_TEST_SUITE_P(
    , Unbiasedness,
    testing::Values("uniform:bits=1", "uniform:bits=2,bucket=7", "uniform:bits=4",
                    "uniform:bits=4,meta=fp32", "uniform:bits=8,bucket=1000", "exponential:bits=2",
                    "exponential:bits=4", "exponential:bits=4,meta=fp32,bucket=100",
                    "exponential:bits=8,bucket=1000", "grid:step=0.5,locality=0", "grid:step=0.5",
                    "grid:step=0.5,locality=1", "grid:step=3", "grid:step=0.01",
                    "grid:step=0.5,locality=0,rounding=dither", "grid:step=0.5,rounding=dither",
                    "grid:step=3,locality=1,rounding=dither", "grid:step=0.01,rounding=dither"),
    [](const auto& tested) {
      std::string name = tested.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(BiasCheck, nearest_is_found_biased) {
  for (const char* spec : {"uniform:rounding=nearest", "exponential:rounding=nearest",
                           "grid:step=0.5,rounding=nearest"}) {
    const Codec codec = Codec::parse(spec);
    EXPECT_FALSE(codec.traits().unbiased);
    EXPECT_GT(worst_bias(codec, mixed_scales(500)), 50) << spec;
  }
}

/// The variance that stochastic rounding between two levels has, p (1 - p) of their distance
/// squared.
TEST(StochasticRounding, variance_is_that_of_two_levels) {
  const Codec codec = Codec::parse("uniform:bits=2,bucket=128,meta=fp32");
  std::vector<float> x(128, 0.0f);
  x[0] = 3;  // levels are 0, 1, 2 and 3
  for (std::size_t i = 1; i < 127; ++i) x[i] = static_cast<float>(i) / 42;
  const Moments moments = over_seeds(codec, Tensor(x, Dtype::f32));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double p = x[i] - std::floor(x[i]);
    EXPECT_NEAR(moments.variance[i], p * (1 - p), 0.03) << x[i];
  }
}

}  // namespace
}  // namespace gradwire::test
