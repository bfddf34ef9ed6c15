#include "plan/prediction.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"
#include "plan/cost_presets.h"
#include "plan/models.h"
#include "plan/selection.h"

namespace gradwire {
namespace {

const Cluster kCluster{.hosts = 4, .ranks_per_host = 2};

TEST(Prediction, of_chosen_ways_is_what_the_selection_foretold) {
  const Costs costs = preset_costs("cpu");
  const Workload workload{"three",
                          {{"a", 1U << 20U, 0.01}, {"b", 1U << 22U, 0.02}, {"c", 1U << 18U, 0.05}},
                          0.02,
                          0.05};
  const Selection selection =
      select(workload, kCluster, costs, {.codecs = codecs_without_feedback(costs)});
  const std::vector<Way> ways = ways_of(plan_of(workload, selection), workload, 0);
  EXPECT_DOUBLE_EQ(predict(workload, kCluster, costs, ways).step_seconds, selection.step_seconds);
}

TEST(Prediction, without_a_route_takes_the_engines) {
  const Costs costs = preset_costs("cpu");
  const Workload workload{"one", {{"a", 1U << 22U, 0.01}}, 0, 0.01};
  const auto seconds = [&](const char* way) {
    const Way ways[] = {Way::parse(way)};
    return predict(workload, kCluster, costs, ways).step_seconds;
  };
  EXPECT_EQ(seconds("none"), seconds("none+route:sra"));
  EXPECT_EQ(seconds("grid:step=0.5"), seconds("grid:step=0.5+route:sra"));
  EXPECT_NE(seconds("none"), seconds("none+route:hierarchical"));
}

TEST(Prediction, says_what_it_does_not_know) {
  const Workload workload{"one", {{"a", 1U << 22U, 0.01}}, 0, 0.01};
  const Way unknown[] = {Way::parse("none+route:ring")};
  EXPECT_THROW(static_cast<void>(predict(workload, kCluster, preset_costs("cpu"), unknown)), Error);
}

}  // namespace
}  // namespace gradwire
