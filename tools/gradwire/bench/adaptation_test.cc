#include "bench/adaptation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradients/synthetic.h"

namespace gradwire::cli {
namespace {

constexpr std::size_t kElements = 32768;

/// Layers whose numbers lie in another order of magnitude each.
class CompareSolvers : public testing::Test {
 protected:
  CompareSolvers() {
    float scale = 1;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i].resize(kElements);
      fill(Distribution::laplace, i, numbers_[i]);
      for (float& number : numbers_[i]) number *= scale;
      group_.layers.push_back({i, {numbers_[i].data(), kElements, Dtype::f32}, 2});
      scale /= 8;
    }
  }

  static const Adaptation& find(const AdaptedGroup& group, const std::string& solver) {
    return *std::find_if(group.adaptations.begin(), group.adaptations.end(),
                         [&](const Adaptation& a) { return a.solver == solver; });
  }

  std::vector<std::vector<float>> numbers_{4};
  GradientGroup group_{.name = "model/20", .step = 20};
};

TEST_F(CompareSolvers, all_keep_the_budget_and_better_ones_need_fewer_bytes) {
  const AdaptedGroup result = compare_solvers(group_);
  EXPECT_EQ("model/20", result.name);
  EXPECT_EQ(4U, result.layers);
  EXPECT_EQ(4 * kElements, result.elements);
  for (const Adaptation& adaptation : result.adaptations) {
    EXPECT_LE(adaptation.squared_error, result.budget) << adaptation.solver;
    EXPECT_GT(adaptation.bytes, 0);
  }
  const double uniform = find(result, "uniform").bytes, dp = find(result, "dp").bytes;
  EXPECT_EQ(4 * kElements * 4.25 / 8, uniform);
  EXPECT_LE(dp, find(result, "kmeans").bytes);
  EXPECT_LE(dp, find(result, "linear").bytes);
  EXPECT_LT(dp, uniform);
  EXPECT_LT(find(result, "waterfill").bytes, dp);
}

TEST_F(CompareSolvers, layers_that_travel_exactly_are_left_out) {
  group_.layers[0].dimensions = 1;
  group_.layers[1].values.count = 1023;
  EXPECT_EQ(2U, compare_solvers(group_).layers);
}

TEST_F(CompareSolvers, steps_are_added) {
  AdaptedGroup sum = compare_solvers(group_);
  const AdaptedGroup step = sum;
  sum += step;
  EXPECT_EQ(2 * step.budget, sum.budget);
  EXPECT_EQ(2 * step.adaptations[3].bytes, sum.adaptations[3].bytes);
  EXPECT_EQ(step.adaptations[3].milliseconds, sum.adaptations[3].milliseconds);
}

}  // namespace
}  // namespace gradwire::cli
