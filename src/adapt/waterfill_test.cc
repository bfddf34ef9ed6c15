#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "adapt/adapt_test_layers.h"
#include "base/clock.h"
#include "codec/grid.h"

namespace gradwire::adapt {
namespace {

Codec grid_codec(double step) { return Codec::parse(fmt::format("grid:step={}", step)); }

double step_of(const Candidate& candidate) { return grid::step_of(candidate.codec).value(); }

/// As fine quantization has it: error = energy * step² / 6, and a bit for half the step.
Layer fine_layer(double elements, double energy) {
  Layer layer{.name = "fine", .elements = static_cast<std::uint64_t>(elements), .energy = energy};
  for (double step = 4; step > 0.01; step /= 2) {
    layer.candidates.push_back(
        {grid_codec(step), elements / 8 * (4 - std::log2(step)), energy * step * step / 6});
  }
  layer.reference_error = energy * 0.01;
  return layer;
}

TEST(Waterfill, makes_the_same_error_everywhere_for_the_same_elements) {
  // Bytes by the logarithm of the error have one slope, so errors are as elements.
  const std::vector<Layer> layers = {fine_layer(1000, 1), fine_layer(1000, 16),
                                     fine_layer(4000, 16)};
  const double budget = 0.06;
  const Choices choices = kWaterfill.solve(layers, budget);
  EXPECT_NEAR(0.01, choices[0].squared_error, 0.0002);
  EXPECT_NEAR(0.01, choices[1].squared_error, 0.0002);
  EXPECT_NEAR(0.04, choices[2].squared_error, 0.0008);
  EXPECT_NEAR(std::sqrt(0.06), step_of(choices[0]), 0.002);
  EXPECT_LE(cost_of(layers, choices).error, budget);
}

TEST(Waterfill, weighs_errors) {
  std::vector<Layer> layers = {fine_layer(1000, 1), fine_layer(1000, 1)};
  layers[1].weight = 4;
  const Choices choices = kWaterfill.solve(layers, 0.02);
  EXPECT_NEAR(0.01, choices[0].squared_error, 0.0002);
  EXPECT_NEAR(0.0025, choices[1].squared_error, 0.0001);
  layers[1].weight = 0;
  EXPECT_EQ(layers[1].candidates[0].codec, kWaterfill.solve(layers, 0.02)[1].codec);
}

TEST(Waterfill, needs_no_more_bytes_than_the_measured_steps_do) {
  RandomNumbers random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<Layer> layers;
    for (std::size_t i = random.up_to(20); i > 0; --i) {
      layers.push_back(
          fine_layer(std::exp(random.between(7, 14)), std::exp(random.between(-8, 8))));
    }
    const double budget = budget_of(layers, std::exp(random.between(-3, 3)));
    const Cost water = cost_of(layers, kWaterfill.solve(layers, budget));
    const Cost steps = cost_of(layers, kDp.solve(layers, budget));
    EXPECT_LE(water.error, budget * (1 + 1e-9));
    if (steps.error <= budget) {
      EXPECT_LE(water.bytes, 1.001 * steps.bytes);
    }
  }
}

TEST(Waterfill, keeps_codecs_other_keys) {
  Layer layer = fine_layer(1000, 1);
  for (Candidate& candidate : layer.candidates) {
    candidate.codec =
        Codec::parse(fmt::format("grid:step={},locality=0,rounding=dither", step_of(candidate)));
  }
  const Choices choices = kWaterfill.solve(std::vector<Layer>{layer}, 0.01);
  EXPECT_EQ(Codec::parse("grid:step=0.244,locality=0,rounding=dither"), choices[0].codec);
}

TEST(Waterfill, refuses_codecs_without_steps) {
  const std::vector<Layer> layers = {layer_of({{1, 1}, {2, 0.5}})};
  try {
    kWaterfill.solve(layers, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("grid:step="), std::string_view::npos);
  }
}

TEST(Waterfill, three_hundred_layers_take_less_than_a_millisecond) {
  RandomNumbers random(1);
  std::vector<Layer> layers;
  for (int i = 0; i < 300; ++i) {
    layers.push_back(fine_layer(std::exp(random.between(7, 14)), std::exp(random.between(-8, 8))));
  }
  double fastest = kInfinity;
  for (int i = 0; i < 20; ++i) {
    const auto start = Clock::now();
    const Choices choices = kWaterfill.solve(layers, budget_of(layers));
    fastest = std::min(fastest, std::chrono::duration<double>(Clock::now() - start).count());
    EXPECT_EQ(choices.size(), layers.size());
  }
  RecordProperty("milliseconds", std::to_string(1e3 * fastest));
  EXPECT_LT(fastest, 0.01);  // 0.001 on a machine that does nothing else, without sanitizers
}

}  // namespace
}  // namespace gradwire::adapt
