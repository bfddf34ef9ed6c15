#include "base/sampling.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(MedianOf, values) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
}

TEST(CallsPerSample, make_it_long_enough) {
  const auto wait = [] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
    while (std::chrono::steady_clock::now() < until) continue;
  };
  const std::size_t calls = calls_per_sample(wait);
  EXPECT_GE(calls, 2);
  EXPECT_LE(calls, 25);
}

}  // namespace
}  // namespace gradwire
