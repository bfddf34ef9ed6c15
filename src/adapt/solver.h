// Which codec every layer takes, so that all of them together lose no more than a budget and send
// as little as possible.
//
//   std::vector<adapt::Layer> layers = …;  // measured (layer_measurement.h), or estimated
//   adapt::Choices choices = adapt::find_solver("dp").solve(layers, adapt::budget_of(layers));
//
// Errors are sums of squares. A layer's counts with its weight, as one optimizer bears in a layer
// what another does not.
//
// Solvers are functions of their arguments alone: the same layers give the same choices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/codec.h"

namespace gradwire::adapt {

/// A codec that a layer could take, and what that would cost.
struct Candidate {
  Codec codec;
  double bytes = 0;
  double squared_error = 0;  ///< not finite: it is never taken if there is another
};

/// A layer whose energy, weight or errors are not finite takes its last candidate and counts for
/// nothing in the budget.
struct Layer {
  std::string name{};
  std::uint64_t elements = 0;
  double energy = 0;                    ///< sum of the squares of its numbers
  double weight = 1;                    ///< how much a squared error of it matters; at least 0
  double reference_error = 0;           ///< squared error by the reference codec
  std::vector<Candidate> candidates{};  ///< from the fewest bytes on; at least one
};

/// By layer: one of its candidates, or, by `waterfill`, one between two of them, with what it is
/// expected to cost.
using Choices = std::vector<Candidate>;

/// 4 bits for all layers cost no accuracy, as CGX found: adapting may lose as much.
inline constexpr const char* kReference = "uniform:bits=4,bucket=128";

/// `alpha` times the weighted error of the reference codec.
double budget_of(std::span<const Layer> layers, double alpha = 1);

/// What some choices cost together.
struct Cost {
  double bytes = 0;
  double error = 0;  ///< weighted
};
Cost cost_of(std::span<const Layer> layers, const Choices& choices);

struct Solver {
  std::string_view name;
  std::string_view summary;
  bool keeps_budget;  ///< false: the candidates alone decide what is lost
  /// Where no choices meet the budget, each layer takes the candidate with the smallest error.
  /// Throws `Error(invalid_argument)` if a layer has no candidate, or one that the solver cannot
  /// use.
  Choices (*solve)(std::span<const Layer> layers, double budget);
};

extern const Solver kKmeans;     ///< CGX's clusters of layers, a number of bits for each
extern const Solver kLinear;     ///< CGX's alternative: bits by the logarithm of the norm
extern const Solver kDp;         ///< L-GreCo's knapsack, solved to 0.01 %
extern const Solver kWaterfill;  ///< steps of `grid`, the same gain by a byte in every layer

/// All of them, in the order in which help texts list them.
std::span<const Solver* const> solvers();
/// Throws `Error(invalid_argument)` that lists what exists.
const Solver& find_solver(std::string_view name);

/// With a solver that does not keep a budget: of all ranges of candidates, from the i-th to the
/// j-th of every layer, the one with which it keeps the budget in the fewest bytes.
Choices solve_within(const Solver& solver, std::span<const Layer> layers, double budget);

}  // namespace gradwire::adapt
