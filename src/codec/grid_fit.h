// Choosing the grid's steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/grid.h"
#include "codec/grid_format.h"

namespace gradwire::grid {

/// One chunk's blocks: energies, and what follows from them.
struct Blocks {
  double energies[kChunkBlocks];
  float steps[kChunkBlocks];
  std::int8_t scales[kChunkBlocks];
};

/// A block with the relative mean square 2^(scale + ½) gets the step
/// step * rms^(1-locality) * its rms^locality.
PayloadHeader scaling(const Settings& settings) noexcept;

/// Fills scales and steps from the energies of a chunk of `count` numbers. A block whose integers
/// would not fit in 15 bits, or that is not finite, gets the step NaN: it is sent as it is.
void choose_steps(const Steps& steps, const Settings& settings, std::size_t count,
                  Blocks& blocks) noexcept;

template <typename Function>
void for_each_chunk(ConstTensorView x, const Function& function) noexcept {
  for (std::size_t first = 0; first < x.count; first += kChunk) {
    function(first, x.slice(first, std::min(kChunk, x.count - first)));
  }
}

}  // namespace gradwire::grid
