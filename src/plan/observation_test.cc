#include "plan/observation.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"
#include "plan/cost_presets.h"
#include "plan/prediction.h"

namespace gradwire {
namespace {

const std::vector<Layer> kLayers{{"head", 1000, 2}, {"unused", 10, 1}, {"body", 1U << 20U, 2}};

StepTimes step(double more) {
  return {.ready_seconds = {0, -1, 0.3 + more},
          .computed_seconds = 0.3 + more,
          .exchanged_seconds = 0.8 + more,
          .step_seconds = 1 + more,
          .processor_seconds = 0.1};
}

Observation seen_by(const std::vector<StepTimes>& alone, double beside) {
  StepTimes other;
  other.ready_seconds = {0, -1, beside};
  other.computed_seconds = beside;
  return observe(kLayers, alone, std::vector<StepTimes>{other});
}

TEST(Observe, takes_medians) {
  const Observation seen = seen_by({step(0), step(0.001), step(5)}, 0.4);
  EXPECT_DOUBLE_EQ(seen.workload.backward_seconds, 0.301);
  EXPECT_NEAR(seen.workload.forward_seconds, 0.2, 1e-12);
  EXPECT_NEAR(seen.exchange_seconds, 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(seen.beside_seconds, 0.4);
  ASSERT_EQ(seen.workload.tensors.size(), 2);  // nothing was exchanged of the unused layer
  EXPECT_EQ(seen.workload.tensors[0], (WorkloadTensor{"head", 1000, 0}));
  EXPECT_EQ(seen.workload.tensors[1], (WorkloadTensor{"body", 1U << 20U, 0.301}));
}

Observation with_costs() {
  Observation seen = seen_by({step(0)}, 0.36);
  seen.latency_seconds = 3e-5;
  seen.costs = preset_costs("cpu");
  seen.costs.cores = 4;
  return seen;
}

TEST(Observation, has_a_text) {
  const Observation seen = with_costs();
  const Observation read = parse_observation(text_of(seen));
  EXPECT_EQ(read.workload, seen.workload);
  EXPECT_EQ(read.costs, seen.costs);
  EXPECT_EQ(read.exchange_seconds, seen.exchange_seconds);
  EXPECT_EQ(read.processor_seconds, seen.processor_seconds);
  EXPECT_EQ(read.latency_seconds, seen.latency_seconds);
  EXPECT_EQ(read.beside_seconds, seen.beside_seconds);
  EXPECT_THROW(static_cast<void>(parse_observation("{}")), Error);
}

TEST(Observation, of_all_ranks_has_means_and_the_slowest_codecs) {
  Observation ranks[] = {with_costs(), with_costs()};
  ranks[1].workload.tensors[1].ready_seconds = 0.2;
  ranks[1].workload.backward_seconds = 0.5;
  ranks[1].exchange_seconds = 0.7;
  ranks[1].costs.cores = 2;
  const std::string grid = Codec::parse("grid:step=0.5").spec();
  ranks[1].costs.codecs[grid].encode = CostTable({{1024, 1}});
  const Observation all = joined(ranks);
  EXPECT_DOUBLE_EQ(all.workload.tensors[1].ready_seconds, 0.25);
  EXPECT_DOUBLE_EQ(all.workload.backward_seconds, 0.4);
  EXPECT_DOUBLE_EQ(all.exchange_seconds, 0.6);
  EXPECT_EQ(all.costs.cores, 2);
  EXPECT_EQ(all.costs.codecs.at(grid).encode.at(1024), 1);
  EXPECT_EQ(all.costs.codecs.at(grid).decode, ranks[0].costs.codecs.at(grid).decode);
}

/// The exchange that was seen, as it is forecast.
double forecast_of_exchange(const Observation& seen, const Cluster& cluster, const Costs& costs) {
  Workload exchange = seen.workload;
  exchange.forward_seconds = exchange.backward_seconds = 0;
  for (WorkloadTensor& tensor : exchange.tensors) tensor.ready_seconds = 0;
  return predict(exchange, cluster, costs, std::vector<Way>(exchange.tensors.size())).step_seconds;
}

TEST(FittedCosts, forecast_what_was_seen) {
  for (const Cluster cluster : {Cluster{2, 1}, Cluster{1, 2}, Cluster{4, 1}, Cluster{2, 2}}) {
    const Observation seen = with_costs();
    const Costs costs = fitted_costs(seen, cluster);
    EXPECT_NEAR(forecast_of_exchange(seen, cluster, costs), seen.exchange_seconds,
                1e-4 * seen.exchange_seconds);
    EXPECT_DOUBLE_EQ(costs.interference, 1.2);
    const LinkCost& link = cluster.hosts > 1 ? costs.between : costs.inside;
    EXPECT_EQ(link.seconds, seen.latency_seconds);
    EXPECT_GT(link.cpu_seconds_per_byte, 0);
  }
}

TEST(FittedCosts, an_exchange_that_took_no_time_needs_no_link) {
  Observation seen = with_costs();
  seen.exchange_seconds = 0;
  const Costs costs = fitted_costs(seen, {2, 1});
  EXPECT_LT(costs.between.seconds_per_byte, 1e-12);
}

}  // namespace
}  // namespace gradwire
