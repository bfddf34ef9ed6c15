#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

double mean_magnitude(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += std::fabs(static_cast<double>(value));
  return sum / static_cast<double>(x.size());
}

void expect_means(const std::string& spec, std::size_t bucket, double largest_ratio) {
  const std::vector<float> x = gradient_like(5000, 7);
  const std::vector<float> decoded = pass(spec, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t first = i / bucket * bucket;
    const double mean =
        mean_magnitude(std::span(x).subspan(first, std::min(bucket, x.size() - first)));
    ASSERT_GE(std::fabs(decoded[i]), mean * (1 - 1e-6)) << spec << ", element " << i;
    ASSERT_LE(std::fabs(decoded[i]), mean * largest_ratio) << spec << ", element " << i;
    ASSERT_EQ(std::signbit(decoded[i]), std::signbit(x[i])) << spec << ", element " << i;
  }
}

TEST(Sign, numbers_become_plus_or_minus_the_mean_magnitude) {
  for (const std::size_t bucket : {1u, 7u, 100u, 1000u, 4096u}) {
    const std::string spec = "sign:bucket=" + std::to_string(bucket);
    expect_means(spec + ",meta=fp32", bucket, 1 + 1e-6);
    expect_means(spec + ",meta=bf16", bucket, 1 + 0x1p-7);  // rounded up
  }
}

}  // namespace
}  // namespace gradwire::test
