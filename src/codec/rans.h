// The entropy coder: 32 interleaved rANS states over an alphabet of 16 symbols.
//
// A state is a 31-bit integer x >= 2^15. Probabilities are twelfths of bits: frequencies that add
// up to 4096. Words of 16 bits go in and out. To decode a symbol a decoder must find which one owns
// a slot (the low 12 bits of the state); with 16 symbols the alias method answers that by one
// comparison of bytes, in registers: slots come in 16 bins of 256, and each bin belongs to at most
// two symbols.
//
// Symbols are coded in groups of 32, symbol i of a group by state i. Encoding runs backwards, so
// that decoding runs forwards. docs/format.md, "Entropy coder", specifies every bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire {

inline constexpr int kRansSymbols = 16;
inline constexpr int kRansStates = 32;  // also the symbols of a group
inline constexpr std::uint32_t kRansTotal = 4096;
inline constexpr std::uint32_t kRansLow = 1u << 15;

using RansStates = std::array<std::uint32_t, kRansStates>;

/// One table of frequencies, prepared for vector code. Bytes are apart so that each row is one
/// register.
struct RansTable {
  alignas(16) std::uint8_t frequency[2][kRansSymbols];  // low and high bytes
  alignas(16) std::uint8_t divider[kRansSymbols];       // of a bin: below it the bin's own symbol
  alignas(16) std::uint8_t alias[kRansSymbols];         // of a bin: the symbol from the divider on
  alignas(
      16) std::uint8_t bias[2][kRansSymbols];  // what turns a bin's position into its rank there
  alignas(16) std::uint8_t start[2][kRansSymbols];  // encoder: sum of the frequencies before
  alignas(16) std::uint8_t
      reciprocal[4][kRansSymbols];  // encoder: bytes of a float, just below 1 / frequency
  /// Encoder: the slot of the symbol's rank r at [start + r]; one more for vector loads.
  std::uint16_t slot[kRansTotal + 2];
  /// What coding a symbol costs, in 256ths of a bit.
  std::uint16_t cost[kRansSymbols];
};

/// `frequencies` add up to 4096 and none is 0.
void make_table(std::span<const std::uint16_t, kRansSymbols> frequencies,
                RansTable& table) noexcept;

/// Consecutive groups that share a table.
struct RansRun {
  const RansTable* table;
  std::uint32_t groups;
};

/// No group takes more than this many 16-bit words.
inline constexpr std::size_t kRansMaxGroupWords = 32;

/// Encodes the groups of `runs`, whose symbols (0..15) stand one after the other from `symbols` on.
/// The words end at `end`; the first of them is returned. Up to 8 words before it may be
/// overwritten.
std::uint16_t* rans_encode(std::span<const RansRun> runs, const std::uint8_t* symbols,
                           RansStates& states, std::uint16_t* end) noexcept;

/// Where a decoder stands. Words may come from anywhere: nothing is read at or behind `end`.
struct RansReader {
  RansStates states;
  const std::byte* at;
  const std::byte* end;
};

/// Decodes `groups` groups. False when the words run out; symbols then are unspecified but in
/// 0..15.
bool rans_decode(RansReader& reader, const RansTable& table, std::size_t groups,
                 std::uint8_t* symbols) noexcept;

/// Whether all words were used and every state is back where encoding started.
bool rans_finished(const RansReader& reader) noexcept;

}  // namespace gradwire
