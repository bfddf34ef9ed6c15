#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "adapt/adapt_test_layers.h"
#include "adapt/solver.h"
#include "base/clock.h"

namespace gradwire::adapt {
namespace {

using Bits = std::vector<std::size_t>;

/// The fewest bytes within the budget, by trying everything.
double fewest_bytes(const std::vector<Layer>& layers, double budget, std::size_t next = 0,
                    double bytes = 0, double error = 0) {
  if (error > budget) return kInfinity;
  if (next == layers.size()) return bytes;
  double fewest = kInfinity;
  for (const Candidate& candidate : layers[next].candidates) {
    fewest = std::min(fewest, fewest_bytes(layers, budget, next + 1, bytes + candidate.bytes,
                                           error + layers[next].weight * candidate.squared_error));
  }
  return fewest;
}

TEST(Dp, takes_bytes_where_they_save_least) {
  const std::vector<Layer> layers = {layer_of({{10, 8}, {20, 2}, {30, 0.5}}),
                                     layer_of({{10, 1}, {20, 0.25}, {30, 0.0625}})};
  EXPECT_EQ((Bits{2, 1}), bits_of(layers, kDp.solve(layers, 3)));
  EXPECT_EQ((Bits{3, 1}), bits_of(layers, kDp.solve(layers, 2)));
  EXPECT_EQ((Bits{1, 1}), bits_of(layers, kDp.solve(layers, 9)));
}

TEST(Dp, finds_what_lies_above_the_hull) {
  // Relaxed, the first layer would mix 1 and 3 bits.
  const std::vector<Layer> layers = {layer_of({{0, 10}, {60, 5}, {100, 0}})};
  EXPECT_EQ((Bits{2}), bits_of(layers, kDp.solve(layers, 5)));
}

TEST(Dp, weighs_errors) {
  std::vector<Layer> layers = {layer_of({{10, 4}, {20, 1}}), layer_of({{10, 4}, {20, 1}})};
  layers[1].weight = 10;
  EXPECT_EQ((Bits{1, 2}), bits_of(layers, kDp.solve(layers, 14)));
  layers[1].weight = 0;
  EXPECT_EQ((Bits{2, 1}), bits_of(layers, kDp.solve(layers, 1)));
}

TEST(Dp, is_within_half_a_per_cent_of_exhaustive_search) {
  RandomNumbers random(1);
  for (unsigned seed = 0; seed < 200; ++seed) {
    const auto layers = random_layers(random.up_to(seed % 20 == 0 ? 8 : 6), random.up_to(7), seed);
    const double budget = budget_of(layers, std::exp(random.between(-4, 4)));
    const double fewest = fewest_bytes(layers, budget);
    if (fewest == kInfinity) continue;
    const Cost cost = cost_of(layers, kDp.solve(layers, budget));
    EXPECT_LE(cost.error, budget) << seed;
    EXPECT_LE(cost.bytes, 1.005 * fewest) << seed;
  }
}

TEST(Dp, never_exceeds_the_budget_nor_the_reference) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto layers = random_layers(1 + seed, 8, seed);
    Choices reference;
    for (const Layer& layer : layers) reference.push_back(layer.candidates[3]);
    const Cost cost = cost_of(layers, kDp.solve(layers, budget_of(layers)));
    EXPECT_LE(cost.error, budget_of(layers));
    EXPECT_LE(cost.bytes, cost_of(layers, reference).bytes);
  }
}

TEST(Dp, choices_over_densities) {
  Layer layer{.name = "sparse", .elements = 1000, .energy = 1};
  for (const char* density : {"0.01", "0.1", "0.5"}) {
    const double share = std::stod(density);
    layer.candidates.push_back(
        {Codec::parse(std::string("topk:density=") + density), 4000 * share, 1 - share});
  }
  const Choices choices = kDp.solve(std::vector<Layer>{layer}, 0.95);
  EXPECT_EQ(Codec::parse("topk:density=0.1"), choices[0].codec);
}

TEST(Dp, three_hundred_layers_take_milliseconds) {
  const auto layers = random_layers(300, 7, 1);
  double fastest = kInfinity;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    const Choices choices = kDp.solve(layers, budget_of(layers));
    fastest = std::min(fastest, std::chrono::duration<double>(Clock::now() - start).count());
    EXPECT_LE(cost_of(layers, choices).error, budget_of(layers));
  }
  RecordProperty("milliseconds", std::to_string(1e3 * fastest));
  EXPECT_LT(fastest, 0.2);  // 0.02 on a machine that does nothing else, without sanitizers
}

}  // namespace
}  // namespace gradwire::adapt
