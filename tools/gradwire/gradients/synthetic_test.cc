#include "gradients/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;

std::vector<float> draw(Distribution distribution, std::uint64_t seed = 1,
                        std::size_t count = kCount) {
  std::vector<float> values(count);
  fill(distribution, seed, values);
  return values;
}

template <typename Function>
double mean(const std::vector<float>& values, Function function) {
  double sum = 0;
  for (const float x : values) sum += function(static_cast<double>(x));
  return sum / static_cast<double>(values.size());
}

double share(const std::vector<float>& values, double beyond) {
  return mean(values, [=](double x) { return std::abs(x) > beyond ? 1.0 : 0.0; });
}

// Tolerances are five standard deviations of a mean over 2^20 draws.
constexpr double kRoot = 1024;

TEST(Synthetic, gaussian_has_its_moments) {
  const auto values = draw(Distribution::gaussian);
  EXPECT_NEAR(0, mean(values, [](double x) { return x; }), 5 / kRoot);
  EXPECT_NEAR(1, mean(values, [](double x) { return x * x; }), 5 * std::sqrt(2) / kRoot);
  EXPECT_NEAR(3, mean(values, [](double x) { return x * x * x * x; }), 5 * std::sqrt(96) / kRoot);
}

TEST(Synthetic, laplace_has_its_moments) {
  const auto values = draw(Distribution::laplace);
  EXPECT_NEAR(0, mean(values, [](double x) { return x; }), 5 * std::sqrt(2) / kRoot);
  EXPECT_NEAR(1, mean(values, [](double x) { return std::abs(x); }), 5 / kRoot);
  EXPECT_NEAR(2, mean(values, [](double x) { return x * x; }), 5 * std::sqrt(20) / kRoot);
}

// Quantiles of Student's t with three degrees of freedom, from its distribution function.
TEST(Synthetic, student_has_its_quantiles) {
  const auto values = draw(Distribution::student_t3);
  EXPECT_NEAR(0.5, share(values, 0.764892), 5 * 0.5 / kRoot);
  EXPECT_NEAR(0.05, share(values, 3.182446), 5 * 0.218 / kRoot);
  EXPECT_NEAR(0.001, share(values, 12.92398), 5 * 0.0316 / kRoot);
}

TEST(Synthetic, sparse_rows_are_zero_or_full) {
  const auto values = draw(Distribution::sparse);
  std::size_t full = 0;
  for (std::size_t row = 0; row < kCount; row += 256) {
    const auto zeros = std::count(values.begin() + static_cast<std::ptrdiff_t>(row),
                                  values.begin() + static_cast<std::ptrdiff_t>(row) + 256, 0.0F);
    EXPECT_TRUE(zeros == 0 || zeros == 256) << row;
    full += zeros == 0;
  }
  EXPECT_NEAR(kCount / 256.0 / 16, static_cast<double>(full), 5 * std::sqrt(kCount / 256.0 / 16));
}

TEST(Synthetic, seed_decides_all) {
  for (const auto distribution : {Distribution::gaussian, Distribution::laplace,
                                  Distribution::student_t3, Distribution::sparse}) {
    EXPECT_EQ(draw(distribution, 7, 999), draw(distribution, 7, 999));
    EXPECT_NE(draw(distribution, 7, 99999), draw(distribution, 8, 99999));
  }
}

TEST(Synthetic, names_round_trip_and_a_wrong_one_lists_them) {
  for (const auto distribution : {Distribution::gaussian, Distribution::laplace,
                                  Distribution::student_t3, Distribution::sparse}) {
    EXPECT_EQ(distribution, parse_distribution(name_of(distribution)));
  }
  try {
    parse_distribution("cauchy");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos,
              std::string(error.what()).find("gaussian, laplace, student, sparse"));
  }
}

}  // namespace
}  // namespace gradwire::cli
