#include "bench/adaptation.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "adapt/layer_measurement.h"
#include "adapt/solver.h"
#include "base/sampling.h"
#include "machine/measure.h"
#include "plan/policies.h"
#include "tensor/cast.h"

namespace gradwire::cli {
namespace {

constexpr unsigned kSolvings = 5;  // of which the median time is shown
/// Between its samples a waterfill guesses; its budget is corrected by what the guess was off.
constexpr int kMostCorrections = 5;
constexpr double kCloseEnough = 0.995;

/// A layer's numbers in single precision, whatever it was stored in.
struct Numbers {
  std::vector<float> values;
  RandomKey random;
};

std::vector<Numbers> numbers_of(const GradientGroup& group) {
  std::vector<Numbers> all;
  for (const Layer& layer : group.layers) {
    const std::size_t count = layer.values.count;
    if (count < kLeastElements || layer.dimensions < 2) continue;
    std::vector<float> values(count);
    kernels::cast(layer.values, {values.data(), count, Dtype::f32}, Into::assign);
    all.push_back({std::move(values), {.step = group.step, .tensor = layer.key}});
  }
  return all;
}

struct Candidates {
  std::string name;
  std::vector<Codec> codecs;
};

/// CGX's: few bits take small buckets.
Candidates bits_1_to_8() {
  Candidates all{"1 to 8 bits", {}};
  for (int bits = 1; bits <= 8; ++bits) {
    all.codecs.push_back(
        Codec::parse(fmt::format("uniform:bits={},bucket={}", bits, bits == 1 ? 32 : 128)));
  }
  return all;
}

Candidates bits_and_buckets() {
  Candidates all{"1 to 8 bits, any bucket", {}};
  for (int bits = 1; bits <= 8; ++bits) {
    for (int bucket = 32; bucket <= 1024; bucket *= 2) {
      all.codecs.push_back(Codec::parse(fmt::format("uniform:bits={},bucket={}", bits, bucket)));
    }
  }
  return all;
}

Candidates grid_steps(const std::string& keys) {
  Candidates all{"grid" + (keys.empty() ? keys : ":" + keys), {}};
  for (double step = 0.0625; step <= 16; step *= 2) {
    all.codecs.push_back(
        Codec::parse(fmt::format("grid:step={}{}{}", step, keys.empty() ? "" : ",", keys)));
  }
  return all;
}

std::vector<adapt::Layer> measure_all(const std::vector<Numbers>& numbers,
                                      const Candidates& candidates) {
  const Codec reference = Codec::parse(adapt::kReference);
  std::vector<adapt::Layer> layers;
  for (const Numbers& of_layer : numbers) {
    layers.push_back(
        adapt::measure_layer({}, of_layer.values, candidates.codecs, reference, of_layer.random));
  }
  return layers;
}

using Solve = adapt::Choices (*)(const adapt::Solver&, std::span<const adapt::Layer>, double);

adapt::Choices solve_directly(const adapt::Solver& solver, std::span<const adapt::Layer> layers,
                              double budget) {
  return solver.solve(layers, budget);
}

Adaptation solve(const adapt::Solver& solver, const Candidates& candidates,
                 std::span<const adapt::Layer> layers, double budget) {
  const Solve solve = solver.keeps_budget ? solve_directly : adapt::solve_within;
  Timings seconds;
  adapt::Choices choices;
  for (unsigned i = 0; i < kSolvings; ++i) {
    seconds.add(seconds_per_call(1, [&] { choices = solve(solver, layers, budget); }));
  }
  const adapt::Cost cost = adapt::cost_of(layers, choices);
  return {std::string(solver.name), candidates.name, cost.bytes, cost.error,
          1e3 * seconds.median()};
}

/// Candidates between those that were measured are measured now.
adapt::Cost measure_choices(const std::vector<Numbers>& numbers, const adapt::Choices& choices) {
  adapt::Cost cost;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const adapt::Candidate real =
        adapt::measure(numbers[i].values, choices[i].codec, numbers[i].random);
    cost.bytes += real.bytes;
    cost.error += real.squared_error;
  }
  return cost;
}

Adaptation waterfill(const std::vector<Numbers>& numbers, const std::string& keys, double budget) {
  const Candidates candidates = grid_steps(keys);
  const std::vector<adapt::Layer> layers = measure_all(numbers, candidates);
  Adaptation result = solve(adapt::kWaterfill, candidates, layers, budget);
  double asked = budget;
  result.bytes = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMostCorrections; ++i) {
    const auto cost = measure_choices(numbers, adapt::kWaterfill.solve(layers, asked));
    const bool keeps_budget = cost.error <= budget;
    if (keeps_budget && cost.bytes < result.bytes) {
      result.bytes = cost.bytes;
      result.squared_error = cost.error;
    }
    if (!(cost.error > 0) || (keeps_budget && cost.error >= kCloseEnough * budget)) break;
    asked *= 0.5 * (1 + kCloseEnough) * budget / cost.error;
  }
  return result;
}

Adaptation reference_of(const std::vector<Numbers>& numbers) {
  const adapt::Choices choices(numbers.size(), {Codec::parse(adapt::kReference)});
  const adapt::Cost cost = measure_choices(numbers, choices);
  return {"uniform", adapt::kReference, cost.bytes, cost.error, 0};
}

}  // namespace

AdaptedGroup& AdaptedGroup::operator+=(const AdaptedGroup& other) {
  layers += other.layers;
  elements += other.elements;
  budget += other.budget;
  for (std::size_t i = 0; i < adaptations.size(); ++i) {
    adaptations[i].bytes += other.adaptations[i].bytes;
    adaptations[i].squared_error += other.adaptations[i].squared_error;
    adaptations[i].milliseconds =
        std::max(adaptations[i].milliseconds, other.adaptations[i].milliseconds);
  }
  return *this;
}

AdaptedGroup compare_solvers(const GradientGroup& group) {
  const std::vector<Numbers> numbers = numbers_of(group);
  AdaptedGroup result{.name = group.name, .layers = numbers.size()};
  for (const Numbers& of_layer : numbers) result.elements += of_layer.values.size();

  const Candidates bits = bits_1_to_8(), buckets = bits_and_buckets();
  const std::vector<adapt::Layer> by_bits = measure_all(numbers, bits);
  const std::vector<adapt::Layer> by_buckets = measure_all(numbers, buckets);
  const double budget = adapt::budget_of(by_bits);
  result.budget = budget;
  result.adaptations = {reference_of(numbers),
                        solve(adapt::kKmeans, bits, by_bits, budget),
                        solve(adapt::kLinear, bits, by_bits, budget),
                        solve(adapt::kDp, bits, by_bits, budget),
                        solve(adapt::kDp, buckets, by_buckets, budget),
                        waterfill(numbers, "", budget),
                        waterfill(numbers, "locality=0", budget),
                        waterfill(numbers, "locality=0,rounding=dither", budget)};
  return result;
}

}  // namespace gradwire::cli
