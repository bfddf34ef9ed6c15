// Which lane goes where, for every set of lanes.
#pragma once

#include <array>
#include <cstdint>

namespace gradwire {

/// kExpand[set][lane]: how many lanes of the set stand before the lane, i.e. which of a row of
/// packed values is the lane's. Valid for 4 and for 8 lanes.
inline constexpr auto kExpand = [] {
  struct {
    std::uint8_t rows[256][8];
    constexpr const std::uint8_t* operator[](std::size_t set) const { return rows[set]; }
  } table{};
  for (unsigned set = 0; set < 256; ++set) {
    std::uint8_t before = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      table.rows[set][lane] = static_cast<std::uint8_t>(before & 7);
      before = static_cast<std::uint8_t>(before + ((set >> lane) & 1));
    }
  }
  return table;
}();

/// For 16-bit lanes, as byte positions: the lanes of the set, in order, at the end of the vector.
template <unsigned kLaneCount>
constexpr auto make_compress() {
  struct {
    std::uint8_t rows[1u << kLaneCount][2 * kLaneCount];
    constexpr const std::uint8_t* operator[](std::size_t set) const { return rows[set]; }
  } table{};
  for (unsigned set = 0; set < 1u << kLaneCount; ++set) {
    unsigned to = kLaneCount;
    for (unsigned lane = kLaneCount; lane-- > 0;) {
      if (((set >> lane) & 1) == 0) continue;
      --to;
      table.rows[set][2 * to] = static_cast<std::uint8_t>(2 * lane);
      table.rows[set][2 * to + 1] = static_cast<std::uint8_t>(2 * lane + 1);
    }
  }
  return table;
}

inline constexpr auto kCompress8 = make_compress<8>();
inline constexpr auto kCompress4 = make_compress<4>();

}  // namespace gradwire
