// The grid codec's loops over numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/grid_classes.h"
#include "codec/rans.h"
#include "codec/spec.h"
#include "gradwire/tensor.h"
#include "tensor/into.h"

namespace gradwire::kernels {

/// The sum of squares of each block of a chunk; NaN where a number is not finite.
void block_energies(ConstTensorView chunk, double* energies) noexcept;

/// How the numbers of a chunk become integers.
struct Quantization {
  const float* steps;  ///< per block; 0: all its numbers are 0; NaN: send it as it is
  Rounding rounding;
  std::uint64_t folded_key;
  std::uint64_t first_element;  ///< of the chunk, in its tensor
};

/// The squared error that quantization is expected to make, per block.
void expected_errors(ConstTensorView chunk, const Quantization& how, double* errors) noexcept;

/// A chunk as classes and symbols, before entropy coding.
struct Symbols {
  std::uint8_t classes[grid::kChunkBlocks];
  std::size_t groups = 0;  ///< of 32 symbols; blocks of zeros and blocks sent as they are have none
  std::uint8_t symbols[grid::kChunk];
};

/// No block needs more bytes than this besides its coded symbols: its numbers as they are.
inline constexpr std::size_t kMaxNumberBytes = 4 * grid::kBlock;

/// Quantizes a chunk. What does not fit in symbols is written to `numbers`: per block low bits,
/// then escapes, or the numbers themselves. Returns the end of that, behind which 32 bytes may be
/// overwritten.
std::byte* to_symbols(ConstTensorView chunk, const Quantization& how, Symbols& symbols,
                      std::byte* numbers) noexcept;

/// The reverse: decodes the symbols of all blocks, with one table per level, and the numbers from
/// them. False when the bytes do not make sense or run out; some of `out` may then have been
/// changed.
bool from_symbols(RansReader& reader, const std::uint8_t* classes, const Quantization& how,
                  const RansTable* tables, std::span<const std::byte> numbers, TensorView out,
                  Into into) noexcept;

/// A chunk without entropy coding: per block the width of its integers in bits (0: zeros;
/// kRawWidth: numbers as they are) and the packed integers.
inline constexpr std::uint8_t kRawWidth = 32;
std::byte* to_packed(ConstTensorView chunk, const Quantization& how, std::byte* to) noexcept;
bool from_packed(std::span<const std::byte> packed, const Quantization& how, TensorView out,
                 Into into) noexcept;

}  // namespace gradwire::kernels
