#include "codec/threshold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

using kernels::key_of;
using kernels::kLargestFiniteKey;
using kernels::Side;

constexpr Select kAllSelects[] = {Select::bracket, Select::exact, Select::trimmed, Select::search};
constexpr Side kSides[] = {Side::both, Side::positive, Side::negative};

std::vector<std::uint32_t> sorted_keys(std::span<const float> x, Side side) {
  std::vector<std::uint32_t> keys;
  for (const float value : x) keys.push_back(key_of(value, side));
  std::sort(keys.begin(), keys.end(), std::greater<>());
  return keys;
}

std::uint64_t count_above(const std::vector<std::uint32_t>& sorted, std::uint32_t key) {
  return static_cast<std::uint64_t>(
      std::partition_point(sorted.begin(), sorted.end(), [&](auto k) { return k > key; }) -
      sorted.begin());
}

/// How many elements a threshold takes on average.
double taken(std::span<const float> x, Side side, Threshold threshold) {
  const auto keys = sorted_keys(x, side);
  const auto above = static_cast<double>(count_above(keys, threshold.key));
  if (threshold.ties == 0) return above;
  const auto equal = static_cast<double>(count_above(keys, threshold.key - 1)) - above;
  return above + equal * threshold.ties / 65536;
}

Threshold find(std::span<const float> x, Side side, std::uint64_t wanted, Select select) {
  const ConstTensorView view{x.data(), x.size(), Dtype::f32};
  return find_threshold({&view, 1}, side, wanted, select);
}

TEST(KeyOf, orders_magnitudes_of_a_side) {
  const float ascending[] = {0.0f,    std::numeric_limits<float>::denorm_min(), 1e-38f,  1.0f,
                             1.0001f, std::numeric_limits<float>::max(),        INFINITY};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_GT(key_of(ascending[i], Side::both), key_of(ascending[i - 1], Side::both));
    EXPECT_EQ(key_of(ascending[i], Side::both), key_of(-ascending[i], Side::both));
  }
  EXPECT_GT(key_of(NAN, Side::both), key_of(INFINITY, Side::both));
  EXPECT_EQ(key_of(2, Side::positive), key_of(-2, Side::negative));
  EXPECT_EQ(key_of(-2, Side::positive), 0u);
  EXPECT_EQ(key_of(2, Side::negative), 0u);
  EXPECT_EQ(key_of(-0.0f, Side::both), 0u);
  EXPECT_EQ(key_of(-INFINITY, Side::positive), key_of(INFINITY, Side::both));
  EXPECT_GT(key_of(-NAN, Side::positive), kLargestFiniteKey);
}

class Thresholds : public testing::TestWithParam<std::size_t> {};

TEST_P(Thresholds, of_exact_and_trimmed_leave_exactly_as_many_as_wanted) {
  const std::size_t count = GetParam();
  for (const auto& x : {gaussian(count, 3), student_t3(count, 4), laplace(count, 5, 1e-20f)}) {
    for (const std::size_t wanted : {std::size_t{1}, count / 1000 + 1, count / 10 + 1, count / 2}) {
      for (const Side side : kSides) {
        const auto keys = sorted_keys(x, side);
        if (wanted == 0 || keys[wanted - 1] == 0) continue;
        for (const Select select : {Select::exact, Select::trimmed}) {
          const Threshold threshold = find(x, side, wanted, select);
          EXPECT_NEAR(taken(x, side, threshold), static_cast<double>(wanted), 0.01);
        }
      }
    }
  }
}

TEST_P(Thresholds, of_all_selections_leave_about_as_many_as_wanted) {
  const std::size_t count = GetParam();
  std::vector<float> outlier = gaussian(count, 6);
  outlier[count / 2] = 1e30f;
  for (const auto& x : {gaussian(count), student_t3(count), sparse(count), gradient_like(count),
                        outlier, std::vector<float>(count, -3.0f)}) {
    for (const double density : {0.001, 0.01, 0.3}) {
      const auto wanted = static_cast<std::uint64_t>(std::ceil(density * double(count)));
      for (const Side side : kSides) {
        const std::uint64_t there = count_above(sorted_keys(x, side), 0);
        for (const Select select : kAllSelects) {
          SCOPED_TRACE(std::string(kSelects[static_cast<int>(select)]) + ", " +
                       std::to_string(density) + ", side " +
                       std::to_string(static_cast<int>(side)));
          const double left = taken(x, side, find(x, side, wanted, select));
          const auto goal = static_cast<double>(std::min(wanted, there));
          EXPECT_GE(left, goal / 2);
          EXPECT_LE(left, 2 * goal);
          if (select == Select::bracket) {
            EXPECT_NEAR(left, goal, goal / 64 + 0.01);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Thresholds, testing::Values(1, 2, 31, 33, 1000, 4096, 5000, 100'000),
                         [](const auto& tested) { return "of_" + std::to_string(tested.param); });

TEST(Threshold, takes_the_share_of_ties_that_is_wanted) {
  const std::vector<float> x(100'000, 0.5f);
  for (const Select select : kAllSelects) {
    const Threshold threshold = find(x, Side::both, 1000, select);
    EXPECT_EQ(threshold.key, std::bit_cast<std::uint32_t>(0.5f));
    EXPECT_EQ(threshold.ties, 655);
  }
}

TEST(Threshold, of_zeros_takes_no_finite_number) {
  const std::vector<float> x(5000);
  for (const Select select : kAllSelects) {
    const Threshold threshold = find(x, Side::both, 5, select);
    EXPECT_EQ(threshold.key, kLargestFiniteKey);
    EXPECT_EQ(threshold.ties, 0);
  }
}

TEST(Threshold, of_fewer_than_wanted_takes_all_that_are_not_zero) {
  std::vector<float> x(5000);
  for (const std::size_t at : {3, 700, 4999}) x[at] = static_cast<float>(at);
  for (const Select select : {Select::bracket, Select::exact, Select::trimmed}) {
    const Threshold threshold = find(x, Side::both, 5, select);
    EXPECT_EQ(threshold.key, 0u);
    EXPECT_EQ(threshold.ties, 0);
  }
}

TEST(Threshold, counts_what_is_not_finite_as_the_largest) {
  std::vector<float> x = gaussian(5000);
  for (std::size_t i = 0; i < 10; ++i) x[400 * i] = i % 2 == 0 ? NAN : -INFINITY;
  for (const Select select : kAllSelects) {
    EXPECT_EQ(taken(x, Side::positive, find(x, Side::positive, 5, select)), 10);
  }
  EXPECT_EQ(find(x, Side::positive, 8, Select::bracket).key, kLargestFiniteKey);
  const Threshold more = find(x, Side::both, 12, Select::exact);
  EXPECT_EQ(count_above(sorted_keys(x, Side::both), more.key), 12u);
}

/// Larger than what a bracket's sample can tell: a stretch that no sample has seen.
TEST(Threshold, is_found_where_the_sample_misleads) {
  std::vector<float> x(1 << 20, 1e-3f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= 1 + static_cast<float>(i % 1000) * 1e-4f;
  for (std::size_t i = 500'000; i < 502'000; ++i) x[i] = 1e10f + static_cast<float>(i) * 1e6f;
  for (const std::uint64_t wanted : {1, 1000, 1999, 2000, 2001, 2300}) {
    EXPECT_NEAR(taken(x, Side::both, find(x, Side::both, wanted, Select::exact)), double(wanted),
                0.01);
    EXPECT_NEAR(taken(x, Side::both, find(x, Side::both, wanted, Select::bracket)), double(wanted),
                double(wanted) / 64 + 0.01);
  }
}

TEST(Threshold, is_the_same_for_a_layer_in_several_places) {
  const std::vector<float> x = student_t3(50'000);
  const ConstTensorView whole{x.data(), x.size(), Dtype::f32};
  const ConstTensorView parts[] = {whole.slice(0, 1), whole.slice(1, 0), whole.slice(1, 12'345),
                                   whole.slice(12'346, 50'000 - 12'346)};
  for (const Select select : {Select::exact, Select::trimmed, Select::bracket}) {
    const Threshold alone = find_threshold({&whole, 1}, Side::both, 50, select);
    const Threshold apart = find_threshold(parts, Side::both, 50, select);
    EXPECT_EQ(alone.key, apart.key);
    EXPECT_EQ(alone.ties, apart.ties);
  }
}

TEST(Threshold, is_the_same_on_every_instruction_set) {
  for (const Dtype dtype : kDtypes) {
    const Tensor x(student_t3(70'001), dtype);
    const ConstTensorView view = x.view();
    for (const Side side : kSides) {
      for (const Select select : kAllSelects) {
        use_isa("scalar");
        const Threshold scalar = find_threshold({&view, 1}, side, 100, select);
        on_every_isa([&] {
          const Threshold here = find_threshold({&view, 1}, side, 100, select);
          EXPECT_EQ(here.key, scalar.key);
          EXPECT_EQ(here.ties, scalar.ties);
        });
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::test
