// Numbers of which golden files are made: by integer arithmetic and single correctly rounded
// operations, so that every machine makes the same.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "golden_cases.h"

namespace gradwire::golden {

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

/// Bell-shaped, standard deviation about 1.
Floats bells(std::uint64_t seed, std::size_t count);

/// Every second number is twice as wide as the last: as heavy a tail as gradients have.
Floats heavy_tailed(std::uint64_t seed, std::size_t count);

/// Blocks of 128 of unlike sizes, some of them zero.
Floats uneven_blocks(std::uint64_t seed, std::size_t count, int exponents);

/// A quarter, or half, of the numbers are wider than the rest: between a bell and a heavy tail.
Floats mixed_widths(std::uint64_t seed, std::size_t count, unsigned one_in, float width);

/// Only one in `one_in` stays; the others are 0.
Floats thinned(Floats x, unsigned one_in);

/// Blocks of 128, each a quarter of an octave wider than the last: all classes.
Floats widening_blocks(std::uint64_t seed, std::size_t count);

/// Multiples of ½, mostly 0, which are whole steps under `grid:step=0.5,locality=0,rms=1`.
Floats sparse_steps(std::size_t count, std::size_t every, std::vector<int> steps);

/// Only some are large: blocks of neighbors, and single ones.
Floats some_large(std::uint64_t seed, std::size_t count);

/// Buckets of 8 that are hard in one way each.
Floats hard_buckets();

Floats with(Floats x, const std::vector<std::pair<std::size_t, float>>& changes);

/// All 16-bit patterns that are not ordinary numbers, and some that are.
Bytes special_halves();

/// Floats as elements of `dtype`.
GoldenSegment segment(const std::string& spec, const Floats& x, Dtype dtype = Dtype::f32,
                      std::uint64_t first_element = 0);

}  // namespace gradwire::golden
