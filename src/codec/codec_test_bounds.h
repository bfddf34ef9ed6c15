// How far a decoded number may be from the encoded one: computed from the codecs' documentation and
// the numbers alone, so that it can disagree with the code.
#pragma once

#include <span>
#include <vector>

#include "gradwire/codec.h"

namespace gradwire::test {

struct Bound {
  /// Of the two levels around the number: stochastic rounding errs by less, nearest and dither by
  /// half. Infinite where a bucket holds what is not finite; 0 where a number travels as it is.
  double distance;
  /// Room for the rounding of floats.
  double slack;
};

/// For codecs with levels: uniform, exponential, and grid with `step=`.
std::vector<Bound> bounds(const Codec& codec, std::span<const float> x);

/// How much of the distance the codec's rounding errs at most: all of it, or half.
double rounding_share(const Codec& codec);

/// The last bf16 not above x, and the first one not below; limited to finite ones.
float bf16_below(float x);
float bf16_above(float x);

}  // namespace gradwire::test
