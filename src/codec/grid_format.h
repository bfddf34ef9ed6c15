// What the grid's encoder and decoder share: headers, the steps of blocks, and which table codes
// what. docs/format.md, "Grid", is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "codec/grid_classes.h"
#include "codec/rans.h"

namespace gradwire::grid {

enum class Mode : std::uint8_t { zeros = 0, coded = 1, packed = 2 };

struct PayloadHeader {  // what all steps follow from, see Steps
  float base;
  float ratio;
};

struct DitherHeader {  // follows only with dithered numbers
  std::uint64_t folded_key;
  std::uint64_t first_element;
};

struct CodedHeader {
  Mode mode;
  std::uint8_t shape;
  std::uint8_t class_table;
  std::uint8_t scale_table;
  std::int8_t class_reference;  // what classes are differences to: a class, or kBlockBefore
  std::int8_t scale_reference;
  std::uint16_t block_bytes;
  std::uint32_t number_bytes;
  std::uint32_t word_count;
};
static_assert(sizeof(CodedHeader) == 16);
inline constexpr std::int8_t kBlockBefore = 127;

// A coded chunk: header, number bytes, block bytes, states, words. A packed one: mode, u32 length,
// bytes.

inline constexpr std::size_t kStatesBytes = sizeof(RansStates);
inline constexpr std::size_t kPackedHeaderBytes = 5;

constexpr std::size_t groups_of(std::size_t symbols) {
  return divide_up<std::size_t>(symbols, kRansStates);
}

inline std::size_t block_count(std::size_t count) noexcept { return divide_up(count, kBlock); }

inline std::size_t block_size(std::size_t block, std::size_t count) noexcept {
  return std::min(kBlock, count - block * kBlock);
}

inline bool is_coded(int block_class) noexcept {
  return block_class != kZeroClass && block_class != kRawClass;
}

inline constexpr std::size_t kFirstBlockTable = kShapes * kLevels;

inline const RansTable* level_tables(int shape) noexcept {
  return &tables()[static_cast<std::size_t>(shape) * kLevels];
}

inline const RansTable& block_table(std::uint8_t index) noexcept {
  return tables()[kFirstBlockTable + index];
}

// A block's scale is the octave of its mean square relative to the layer's; its step is
// base * ratio^scale.

inline constexpr int kMinScale = -60;
inline constexpr int kMaxScale = 40;

class Steps {
 public:
  explicit Steps(const PayloadHeader& header) noexcept {
    table_[-kMinScale] = header.base;
    double step = header.base;
    for (int scale = 1; scale <= kMaxScale; ++scale)
      table_[scale - kMinScale] = to_float(step *= header.ratio);
    step = header.base;
    const double inverse = 1.0 / header.ratio;
    for (int scale = -1; scale >= kMinScale; --scale)
      table_[scale - kMinScale] = to_float(step *= inverse);
  }

  float of(int scale) const noexcept { return table_[scale - kMinScale]; }

 private:
  static float to_float(double step) noexcept { return static_cast<float>(std::min(step, 3e38)); }
  float table_[kMaxScale - kMinScale + 1];
};

}  // namespace gradwire::grid
