// How many bytes a codec spends on some layers, and how much of them it loses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradients/gradient_groups.h"
#include "gradwire/codec.h"

namespace gradwire::cli {

struct Distortion {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;  ///< of whole frames: headers and checksums included
  double squared_error = 0;
  double energy = 0;  ///< sum of squares of the originals

  double bits_per_element() const;
  /// 0 for nothing lost, also of nothing; infinite when zeros alone were changed.
  double nmse() const;
  Distortion& operator+=(const Distortion& other);
};

/// Adds the error and the energy of `decoded` against `original`, which has as many elements.
void add_error(std::span<const float> original, std::span<const float> decoded, Distortion& result);

/// Keeps its buffers between measurements.
class DistortionMeter {
 public:
  /// Encodes the layers into one frame, a segment each, and decodes it.
  Distortion measure(const Codec& codec, std::span<const Layer> layers, std::uint64_t step);

 private:
  std::span<const std::byte> encode(const Codec& codec, std::span<const Layer> layers,
                                    std::uint64_t step);
  std::span<const float> widen(ConstTensorView values);

  std::vector<std::byte> frame_;
  std::vector<std::byte> exact_;
  std::vector<float> original_;
  std::vector<float> decoded_;
};

}  // namespace gradwire::cli
