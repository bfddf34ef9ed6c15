#include "adapt/solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "adapt/front.h"

namespace gradwire::adapt {
namespace {

constexpr const Solver* kSolvers[] = {&kKmeans, &kLinear, &kDp, &kWaterfill};

std::vector<Layer> with_candidates(std::span<const Layer> layers, std::size_t first,
                                   std::size_t last) {
  std::vector<Layer> some(layers.begin(), layers.end());
  for (Layer& layer : some) {
    std::vector<Candidate>& all = layer.candidates;
    const auto at = [&](std::size_t i) {
      return all.begin() + static_cast<std::ptrdiff_t>(std::min(i, all.size() - 1));
    };
    all = std::vector<Candidate>(at(first), std::next(at(last)));
  }
  return some;
}

Choices finest_of(std::span<const Layer> layers) {
  Choices choices;
  for (const Layer& layer : layers) {
    choices.push_back(layer.candidates[front_of(layer).back().candidate]);
  }
  return choices;
}

}  // namespace

double budget_of(std::span<const Layer> layers, double alpha) {
  double error = 0;
  for (const Layer& layer : layers) {
    if (counts(layer)) error += layer.weight * layer.reference_error;
  }
  return alpha * error;
}

Cost cost_of(std::span<const Layer> layers, const Choices& choices) {
  Cost cost;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    cost.bytes += choices[i].bytes;
    if (counts(layers[i])) cost.error += layers[i].weight * choices[i].squared_error;
  }
  return cost;
}

std::span<const Solver* const> solvers() { return kSolvers; }

const Solver& find_solver(std::string_view name) {
  std::string names;
  for (const Solver* solver : kSolvers) {
    if (solver->name == name) return *solver;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", solver->name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown solver '{}'; there are {}", name, names));
}

Choices solve_within(const Solver& solver, std::span<const Layer> layers, double budget) {
  std::size_t most = 0;
  for (const Layer& layer : layers) {
    check_candidates(layer);
    most = std::max(most, layer.candidates.size());
  }
  std::optional<Choices> best;
  for (std::size_t first = 0; first < most; ++first) {
    for (std::size_t last = first; last < most; ++last) {
      Choices choices = solver.solve(with_candidates(layers, first, last), budget);
      const Cost cost = cost_of(layers, choices);
      if (!(cost.error <= budget)) continue;
      if (!best || cost.bytes < cost_of(layers, *best).bytes) best = std::move(choices);
    }
  }
  return best ? *best : finest_of(layers);
}

}  // namespace gradwire::adapt
