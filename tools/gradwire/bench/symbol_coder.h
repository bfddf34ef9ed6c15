// Entropy coders behind one interface, for `gradwire bench coder`: a block of symbols 0..15 to
// bytes and back, with everything a decoder needs to know in the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace gradwire::cli {

inline constexpr int kSymbolCount = 16;
/// Symbols of a block. Of 64 Ki to 1 Mi both coders are fastest, and closest to the entropy, with
/// the most.
inline constexpr std::size_t kBlockSymbols = std::size_t{1} << 20;

class SymbolCoder {
 public:
  virtual ~SymbolCoder() = default;

  /// No encoding of a block is larger.
  virtual std::size_t max_bytes() const = 0;

  /// Counts the symbols, makes a table of them and codes them. `block` has `block_symbols()`
  /// symbols or is the last one, of a multiple of 32. Returns the number of bytes written to `out`.
  virtual std::size_t encode(std::span<const std::uint8_t> block, std::span<std::byte> out) = 0;
  /// False when the bytes do not decode.
  virtual bool decode(std::span<const std::byte> bytes, std::span<std::uint8_t> block) = 0;
};

/// src/codec/rans.h, the coder of the `grid` codec.
std::unique_ptr<SymbolCoder> make_our_coder();

/// htscodecs' 32-way rANS of order 0, with the widest instructions that it has for this CPU or with
/// none. Null when gradwire was built without it.
std::unique_ptr<SymbolCoder> make_htscodecs_coder(bool vectorised);

}  // namespace gradwire::cli
