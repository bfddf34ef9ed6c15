// Layers for the tests of solvers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "adapt/solver.h"

namespace gradwire::adapt {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// `uniform` with 1 bit, 2 bits, ….
inline Codec with_bits(std::size_t bits) {
  return Codec::parse("uniform:bits=" + std::to_string(bits) + ",bucket=128");
}

/// Candidates of 1 bit, 2 bits, … with these bytes and errors.
inline Layer layer_of(std::vector<std::pair<double, double>> costs, double energy = 1) {
  Layer layer{.name = "layer", .elements = 1000, .energy = energy};
  for (const auto& [bytes, error] : costs) {
    layer.candidates.push_back({with_bits(layer.candidates.size() + 1), bytes, error});
  }
  return layer;
}

class RandomNumbers {
 public:
  explicit RandomNumbers(unsigned seed) : random_(seed) {}
  /// The same with every standard library, as its distributions are not.
  double between(double least, double most) {
    return least + (most - least) * (random_() + 0.5) / 4294967296.0;
  }
  std::size_t up_to(std::size_t most) { return 1 + random_() % most; }

 private:
  std::mt19937 random_;
};

/// Sizes and energies over several orders of magnitude, errors that fall to a quarter with a bit,
/// or nearly so. The reference has 4 bits.
inline std::vector<Layer> random_layers(std::size_t count, std::size_t most_bits, unsigned seed) {
  RandomNumbers random(seed);
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < count; ++i) {
    Layer layer{.name = std::to_string(i)};
    layer.elements = static_cast<std::uint64_t>(std::exp(random.between(7, 15)));
    layer.energy = std::exp(random.between(-10, 5));
    const auto elements = static_cast<double>(layer.elements);
    for (std::size_t bits = 1; bits <= most_bits; ++bits) {
      const double error =
          layer.energy * std::pow(0.25, static_cast<double>(bits)) * random.between(0.7, 1.4);
      const double bytes = elements * (static_cast<double>(bits) + 0.25) / 8;
      layer.candidates.push_back({with_bits(bits), bytes, error});
      if (bits == std::min<std::size_t>(4, most_bits)) layer.reference_error = error;
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

/// By layer, the number of bits that was chosen.
inline std::vector<std::size_t> bits_of(const std::vector<Layer>& layers, const Choices& choices) {
  std::vector<std::size_t> bits;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& all = layers[i].candidates;
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const Candidate& c) { return c.codec == choices[i].codec; });
    bits.push_back(1 + static_cast<std::size_t>(at - all.begin()));
  }
  return bits;
}

}  // namespace gradwire::adapt
