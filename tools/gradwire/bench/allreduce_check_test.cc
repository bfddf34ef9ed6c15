#include "bench/allreduce_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradwire::cli {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kPeriod = 1000;

void fill(std::uint32_t rank, std::span<float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i * 7 + rank * 13));
  }
}

/// The right sum, over and over.
std::vector<float> sum_of(std::size_t count) {
  std::vector<float> sum(count);
  std::vector<float> x(kPeriod);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    fill(rank, x);
    for (std::size_t i = 0; i < count; ++i) sum[i] += x[i % kPeriod];
  }
  return sum;
}

TEST(AllreduceCheck, an_exact_sum_holds_and_one_wrong_element_does_not) {
  const AllreduceCheck check(kRanks, kPeriod, fill);
  std::vector<float> result = sum_of(2500);
  const Codec exact = Codec::parse("none");
  EXPECT_TRUE(check.holds(result, exact));
  EXPECT_LT(check.nmse(result), 1e-12);
  result[2499] += 1e-5f;
  EXPECT_FALSE(check.holds(result, exact));
  result[2499] = NAN;
  EXPECT_FALSE(check.holds(result, exact));
}

TEST(AllreduceCheck, a_lossy_sum_may_err_as_much_as_its_codec_and_no_more) {
  const AllreduceCheck check(kRanks, kPeriod, fill);
  const Codec coarse = Codec::parse("uniform:bits=4,bucket=128");
  std::vector<float> result = sum_of(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) result[i] += i % 2 == 0 ? 0.05f : -0.05f;
  EXPECT_TRUE(check.holds(result, coarse));
  EXPECT_FALSE(check.holds(result, Codec::parse("uniform:bits=8,bucket=128")));
  std::vector<float> of_two = sum_of(kPeriod);
  std::vector<float> x(kPeriod);
  fill(2, x);
  for (std::size_t i = 0; i < kPeriod; ++i) of_two[i] -= x[i];  // somebody is missing
  EXPECT_FALSE(check.holds(of_two, coarse));
}

}  // namespace
}  // namespace gradwire::cli
