// How the grid codec describes blocks: what class a block of integers has, and with which table its
// integers are coded. docs/format.md, "Grid", is the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/rans.h"

namespace gradwire::grid {

inline constexpr std::size_t kBlock = 128;       // numbers that share a step and a class
inline constexpr std::size_t kChunk = 1u << 16;  // numbers that are coded together
inline constexpr std::size_t kChunkBlocks = kChunk / kBlock;

inline constexpr int kShapes = 8;
inline constexpr int kLevels = 20;
inline constexpr int kBlockTables = 16;
inline constexpr int kTables = kShapes * kLevels + kBlockTables;

/// Levels end at these sums of magnitudes over a block.
inline constexpr std::uint16_t kLevelEnds[kLevels] = {1,  2,  3,  4,  5,  7,  9,   11,  15,  19,
                                                      25, 33, 42, 55, 71, 93, 121, 157, 204, 265};
inline constexpr std::uint32_t kMaxLevelSum = kLevelEnds[kLevels - 1];

/// A class: 0 is a block of zeros; then the levels; then, for blocks of larger integers, the three
/// highest levels for each number of low bits that travel uncoded; last, a block sent as it is.
inline constexpr int kZeroClass = 0;
inline constexpr int kMaxShift = 8;
inline constexpr int kShiftedLevels = 3;
inline constexpr int kRawClass = 1 + kLevels + kShiftedLevels * kMaxShift;

constexpr int shift_of(int block_class) {
  return block_class <= kLevels ? 0 : (block_class - kLevels - 1) / kShiftedLevels + 1;
}

constexpr int level_of(int block_class) {
  if (block_class <= kLevels) return block_class - 1;
  return kLevels - kShiftedLevels + (block_class - kLevels - 1) % kShiftedLevels;
}

inline constexpr auto kLevelOfSum = [] {
  std::array<std::uint8_t, kMaxLevelSum + 1> levels{};
  for (std::uint32_t sum = 0, level = 0; sum <= kMaxLevelSum; ++sum) {
    if (sum > kLevelEnds[level]) ++level;
    levels[sum] = static_cast<std::uint8_t>(level);
  }
  return levels;
}();

/// The class of integers whose magnitudes add up to `sum` over a whole block (scaled up for a short
/// one).
constexpr int class_of_sum(std::uint32_t sum) {
  int shift = 0;
  while (sum >> shift > kMaxLevelSum) ++shift;
  if (shift > kMaxShift) return kRawClass;
  const int level = kLevelOfSum[sum >> shift];
  if (shift == 0) return 1 + level;
  return kLevels + 1 + kShiftedLevels * (shift - 1) + level - (kLevels - kShiftedLevels);
}

/// Integers -7..7 are symbols 1..15; symbol 0 stands for the rest, which then travel as bytes.
inline constexpr int kEscape = 0;
inline constexpr int kZeroSymbol = 8;
inline constexpr int kMaxDirect = 7;

/// What is coded once per block: a class or a scale as difference to the block before.
inline constexpr int kZeroBlock = 1;  // classes only: a block of zeros
inline constexpr int kSameAsBefore = 9;
inline constexpr int kMinDifference = 2 - kSameAsBefore;
inline constexpr int kMaxDifference = 15 - kSameAsBefore;
inline constexpr int kFirstClass = 12;  // what the first block's class and scale differ from
inline constexpr int kFirstScale = 0;

/// All tables, made once. `tables()[shape * kLevels + level]`, then the kBlockTables.
const std::array<RansTable, kTables>& tables() noexcept;

}  // namespace gradwire::grid
