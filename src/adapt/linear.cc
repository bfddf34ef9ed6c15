// CGX's alternative to clusters: halving a layer's norm takes a bit off.
#include <algorithm>
#include <cmath>

#include "adapt/front.h"

namespace gradwire::adapt {
namespace {

/// Candidates are bits, the last one the most: ceil(most + log2(norm / largest norm)), if there are
/// as few.
std::size_t candidate_of(const Layer& layer, double largest_energy) {
  const std::size_t last = layer.candidates.size() - 1;
  if (!counts(layer)) return last;
  if (layer.energy == 0) return 0;
  const double below = -std::ceil(0.5 * std::log2(layer.energy / largest_energy));
  return below < static_cast<double>(last) ? last - static_cast<std::size_t>(below) : 0;
}

Choices solve(std::span<const Layer> layers, double) {
  double largest = 0;
  for (const Layer& layer : layers) {
    check_candidates(layer);
    if (counts(layer)) largest = std::max(largest, layer.energy);
  }
  Choices choices;
  for (const Layer& layer : layers) {
    choices.push_back(layer.candidates[candidate_of(layer, largest)]);
  }
  return choices;
}

}  // namespace

const Solver kLinear = {.name = "linear",
                        .summary = "a bit less for half the norm, as CGX's alternative",
                        .keeps_budget = false,
                        .solve = solve};

}  // namespace gradwire::adapt
