#include "codec/grid_classes.h"

#include <gtest/gtest.h>

namespace gradwire::grid {
namespace {

TEST(GridClasses, any_sum_gets_the_class_whose_level_covers_it) {
  int before = 0;
  for (std::uint32_t sum = 1; sum < 128u << 15; ++sum) {
    const int block_class = class_of_sum(sum);
    ASSERT_GT(block_class, kZeroClass);
    ASSERT_LE(block_class, kRawClass);
    ASSERT_GE(block_class, before) << "larger sums have no lower class";
    before = block_class;
    if (block_class == kRawClass) continue;
    const int level = level_of(block_class);
    ASSERT_TRUE(level >= 0 && level < kLevels);
    const std::uint32_t high = sum >> shift_of(block_class);
    ASSERT_LE(high, kLevelEnds[level]);
    ASSERT_TRUE(level == 0 || high > kLevelEnds[level - 1]) << sum;
  }
  EXPECT_EQ(before, kRawClass);
}

TEST(GridClasses, shifts_and_levels_cover_all_classes) {
  for (int block_class = 1; block_class < kRawClass; ++block_class) {
    EXPECT_LE(shift_of(block_class), kMaxShift);
    EXPECT_TRUE(level_of(block_class) >= 0 && level_of(block_class) < kLevels);
  }
  EXPECT_EQ(shift_of(kLevels), 0);
  EXPECT_EQ(shift_of(kLevels + 1), 1);
  EXPECT_EQ(shift_of(kRawClass - 1), kMaxShift);
}

}  // namespace
}  // namespace gradwire::grid
