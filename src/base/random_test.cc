#include "gradwire/random.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random_stream.h"

namespace gradwire {
namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

// Computed by a separate program from the text in random_stream.h. Dithered frames depend on them.
TEST(RandomBits, known_keys_give_known_bits) {
  constexpr RandomKey kZero{};
  EXPECT_EQ(random_bits(kZero, 0), 0x71fe);
  EXPECT_EQ(random_bits(kZero, 15), 0x56f8);
  EXPECT_EQ(random_bits(kZero, 16), 0x3e36);
  EXPECT_EQ(random_bits(kZero, 31), 0xe95a);
  EXPECT_EQ(random_bits(kZero, 32), 0xfdd7);
  EXPECT_EQ(random_bits({.seed = 1, .step = 2, .tensor = 3, .rank = 4}, 1'000'003), 0xd690);
  EXPECT_EQ(random_bits({.seed = 7}, kRegionElements - 1), 0xb753);
  EXPECT_EQ(random_bits({.seed = 7}, kRegionElements), 0x4204);
  EXPECT_EQ(random_bits({.seed = 7}, 5 * kRegionElements + 77), 0xc682);
  EXPECT_EQ(random_bits({.seed = kMax, .step = kMax, .tensor = kMax, .rank = kMax}, kMax), 0x6cb2);
}

/// Pearson's statistic over `bins` equally likely bins, in standard deviations from its mean.
double deviation(const std::vector<std::uint32_t>& counts, double draws) {
  const auto bins = static_cast<double>(counts.size());
  const double expected = draws / bins;
  double statistic = 0;
  for (const std::uint32_t count : counts) {
    statistic += (count - expected) * (count - expected) / expected;
  }
  return (statistic - (bins - 1)) / std::sqrt(2 * (bins - 1));
}

TEST(RandomBits, many_elements_are_uniform_over_all_values) {
  constexpr std::uint32_t kDraws = 1u << 22;
  std::vector<std::uint32_t> counts(1u << 16);
  for (std::uint32_t i = 0; i < kDraws; ++i) ++counts[random_bits({.seed = 3}, i)];
  EXPECT_LT(std::fabs(deviation(counts, kDraws)), 5);
}

TEST(RandomBits, many_seeds_are_uniform_at_one_element) {
  constexpr std::uint32_t kDraws = 1u << 20;
  std::vector<std::uint32_t> counts(1u << 12);
  for (std::uint32_t seed = 0; seed < kDraws; ++seed) {
    ++counts[random_bits({.seed = seed}, 12'345) >> 4];
  }
  EXPECT_LT(std::fabs(deviation(counts, kDraws)), 5);
}

/// Draws of two streams, side by side: independent ones fill all pairs of high bits evenly.
double dependence(const RandomKey& a, std::uint64_t a_first, const RandomKey& b,
                  std::uint64_t b_first) {
  constexpr std::uint32_t kDraws = 1u << 19;
  std::vector<std::uint32_t> counts(1u << 12);
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const unsigned high_a = random_bits(a, a_first + i) >> 10;
    const unsigned high_b = random_bits(b, b_first + i) >> 10;
    ++counts[high_a << 6 | high_b];
  }
  return std::fabs(deviation(counts, kDraws));
}

TEST(RandomBits, keys_that_differ_in_one_field_are_independent) {
  constexpr RandomKey kKey{.seed = 5, .step = 6, .tensor = 7, .rank = 8};
  constexpr RandomKey kOthers[] = {{4, 6, 7, 8}, {5, 7, 7, 8}, {5, 6, 6, 8},
                                   {5, 6, 7, 9}, {6, 5, 7, 8}, {5, 6, 8, 7}};
  for (const RandomKey& other : kOthers) EXPECT_LT(dependence(kKey, 0, other, 0), 5);
  EXPECT_GT(dependence(kKey, 0, kKey, 0), 1000) << "the check must notice equal streams";
}

// Weak multiplicative hashes show at distances where the counters differ by few bits.
TEST(RandomBits, elements_at_any_distance_are_independent) {
  constexpr std::uint64_t kDistances[] = {
      1,  2,  3,  4,  5,   8,   15,   16,   17,   31,
      32, 33, 64, 96, 128, 256, 1024, 2048, 4096, kRegionElements};
  for (const std::uint64_t distance : kDistances) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const RandomKey key{.seed = seed};
      EXPECT_LT(dependence(key, 0, key, distance), 5) << "seed " << seed << ", " << distance;
    }
  }
}

TEST(RandomBits, sums_over_a_block_vary_as_those_of_independent_numbers) {
  constexpr std::uint32_t kBlocks = 1u << 14;
  constexpr std::uint32_t kBlock = 128;
  double variance = 0;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    double sum = 0;
    for (std::uint32_t i = 0; i < kBlock; ++i) sum += random_bits({}, b * kBlock + i) - 32767.5;
    variance += sum * sum / kBlocks;
  }
  const double expected = kBlock * 65536.0 * 65536.0 / 12;
  EXPECT_NEAR(variance / expected, 1, 5 * std::sqrt(2.0 / kBlocks));
}

RC_GTEST_PROP(RandomBits, any_group_shares_hashes_between_its_halves,
              (std::uint64_t seed, std::uint64_t group)) {
  const RandomKey key{.seed = seed};
  const std::uint64_t first = group / kGroupElements * kGroupElements;
  for (std::uint64_t i = first; i < first + 16; ++i) {
    const std::uint32_t hash = hash_counter(counter_of(i), stream_key(fold(key), i));
    RC_ASSERT(random_bits(key, i) == (hash & 0xffff));
    RC_ASSERT(random_bits(key, i + 16) == hash >> 16);
  }
}

}  // namespace
}  // namespace gradwire
