#include "adapt/solver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "adapt/adapt_test_layers.h"

namespace gradwire::adapt {
namespace {

/// What every solver takes: three steps of `grid`, from the coarsest on.
Layer grid_layer(double energy) {
  Layer layer{.name = "grid", .elements = 1000, .energy = energy, .reference_error = energy / 16};
  double bytes = 100;
  for (const double step : {2.0, 1.0, 0.5}) {
    layer.candidates.push_back(
        {Codec::parse(fmt::format("grid:step={}", step)), bytes, energy * step * step / 6});
    bytes += 125;
  }
  return layer;
}

class EachSolver : public testing::TestWithParam<const Solver*> {
 protected:
  static Choices solve(const std::vector<Layer>& layers, double budget) {
    return GetParam()->solve(layers, budget);
  }
  static const Codec& finest(const Layer& layer) { return layer.candidates.back().codec; }
};

INSTANTIATE_TEST_SUITE_P(, EachSolver, testing::ValuesIn(solvers().begin(), solvers().end()),
                         [](const auto& solver) { return std::string(solver.param->name); });

TEST_P(EachSolver, no_layers_have_no_choices) { EXPECT_TRUE(solve({}, 1).empty()); }

TEST_P(EachSolver, one_layer_and_no_budget_take_the_finest) {
  const std::vector<Layer> layers = {grid_layer(1)};
  for (const double budget : {0.0, -1.0, 1e-9, kNan}) {
    EXPECT_EQ(finest(layers[0]), solve(layers, budget)[0].codec) << budget;
  }
}

TEST_P(EachSolver, zeros_take_the_fewest_bytes) {
  std::vector<Layer> layers = {grid_layer(1), grid_layer(2), grid_layer(4), grid_layer(0)};
  EXPECT_EQ(layers[3].candidates[0].codec, solve(layers, 0.2)[3].codec);
}

TEST_P(EachSolver, layer_without_elements_is_solved) {
  Layer empty = grid_layer(0);
  empty.elements = 0;
  for (Candidate& candidate : empty.candidates) candidate.bytes = 0;
  EXPECT_EQ(2U, solve({empty, grid_layer(1)}, 0.1).size());
}

TEST_P(EachSolver, odd_numbers_take_the_finest_and_nothing_of_the_budget) {
  Layer odd_energy = grid_layer(1), odd_weight = grid_layer(1), odd_errors = grid_layer(1);
  odd_energy.energy = kNan;
  odd_weight.weight = kInfinity;
  for (Candidate& candidate : odd_errors.candidates) candidate.squared_error = kInfinity;
  const std::vector<Layer> layers = {odd_energy, grid_layer(1), odd_weight, odd_errors,
                                     grid_layer(3)};
  const double budget = budget_of(layers);
  EXPECT_EQ(4.0 / 16, budget);
  const Choices choices = solve(layers, budget);
  for (const std::size_t i : {0, 2, 3}) EXPECT_EQ(finest(layers[i]), choices[i].codec) << i;
  const std::vector<Layer> others = {layers[1], layers[4]};
  if (GetParam()->keeps_budget) {
    const Choices alone = solve(others, budget);
    EXPECT_EQ(alone[0].codec, choices[1].codec);
    EXPECT_EQ(alone[1].codec, choices[4].codec);
  }
}

TEST_P(EachSolver, layer_without_candidates_is_refused_by_name) {
  try {
    solve({grid_layer(1), Layer{.name = "head.weight"}}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'head.weight' has no candidates"), std::string::npos);
  }
}

TEST_P(EachSolver, same_layers_have_the_same_choices) {
  std::vector<Layer> layers;
  RandomNumbers random(3);
  for (int i = 0; i < 60; ++i) layers.push_back(grid_layer(std::exp(random.between(-6, 6))));
  const Choices first = solve(layers, budget_of(layers)), second = solve(layers, budget_of(layers));
  for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(first[i].codec, second[i].codec);
}

TEST(SolveWithin, takes_the_range_of_candidates_that_keeps_the_budget_in_the_fewest_bytes) {
  for (const Solver* solver : {&kKmeans, &kLinear}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      const std::vector<Layer> layers = random_layers(20, 8, seed);
      const double budget = budget_of(layers);
      const Cost cost = cost_of(layers, solve_within(*solver, layers, budget));
      const Cost dp = cost_of(layers, kDp.solve(layers, budget));
      double reference_bytes = 0;
      for (const Layer& layer : layers) reference_bytes += layer.candidates[3].bytes;
      EXPECT_LE(cost.error, budget);
      EXPECT_LE(cost.bytes, reference_bytes);  // the range from 4 bits to 4 bits
      EXPECT_LE(dp.bytes, cost.bytes);
    }
  }
}

TEST(SolveWithin, takes_the_finest_if_nothing_keeps_the_budget) {
  const std::vector<Layer> layers = random_layers(3, 4, 1);
  for (const Candidate& candidate : solve_within(kKmeans, layers, 0)) {
    EXPECT_EQ(with_bits(4), candidate.codec);
  }
}

TEST(FindSolver, says_what_exists) {
  EXPECT_EQ(&kDp, &find_solver("dp"));
  try {
    find_solver("bayesian");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ("unknown solver 'bayesian'; there are kmeans, linear, dp, waterfill",
                 error.what());
  }
}

}  // namespace
}  // namespace gradwire::adapt
