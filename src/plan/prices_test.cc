#include "plan/prices.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/cost_presets.h"

namespace gradwire {
namespace {

Workload some_workload(std::mt19937& random, std::size_t tensors) {
  Workload workload;
  double ready = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    ready += std::uniform_real_distribution(0.0, 0.01)(random);
    workload.tensors.push_back({"", std::size_t{1} << (15 + random() % 10), ready});
  }
  workload.backward_seconds = ready;
  workload.forward_seconds = ready / 2;
  return workload;
}

struct Priced {
  Priced(const Workload& workload, const Costs& costs)
      : candidates({8, 8}, costs, limits), sharing{costs.shares_compute(), costs.interference} {
    for (const WorkloadTensor& tensor : workload.tensors) {
      fronts.push_back(&candidates.front(tensor.elements));
    }
  }

  WayLimits limits{.codecs = {Codec::parse("sign")}};
  Candidates candidates;
  Sharing sharing;
  std::vector<const Prices::Front*> fronts;
};

TEST(Prices, no_choice_has_a_step_below_the_least) {
  std::mt19937 random(2);
  for (const char* costs_of : {"testbed-a", "testbed-b", "cpu"}) {
    const Costs costs = preset_costs(costs_of);
    for (int job = 0; job < 10; ++job) {
      const Workload workload = some_workload(random, 1 + random() % 30);
      Priced priced(workload, costs);
      Prices prices(workload, priced.sharing, priced.fronts);
      prices.adapt(300);
      Forecast forecast(workload, priced.sharing);
      for (int choice = 0; choice < 60; ++choice) {
        // Cheap ones, which are the ones that could.
        prices.change({.factors = {1, 1, 1, 1, 1}, .waiting = 0.1 * (choice % 10)});
        std::vector<const Chain*> chains;
        for (const Candidate* each : prices.cheapest()) {
          chains.push_back(&priced.candidates.chain_of(*each));
        }
        for (std::size_t i = 0; i < chains.size(); ++i) {
          if (random() % 4 != 0) continue;
          chains[i] =
              &priced.candidates.chain_of((*priced.fronts[i])[random() % priced.fronts[i]->size()]);
        }
        forecast.set(chains);
        EXPECT_GE(forecast.step_seconds(), prices.least_seconds() * (1 - 1e-9));
      }
    }
  }
}

TEST(Prices, one_tensor_takes_at_least_its_fastest_exchange) {
  const Costs costs = preset_costs("testbed-b");
  Workload workload;
  workload.tensors = {{"", 10'000'000, 0.1}};
  workload.backward_seconds = 0.1;
  Priced priced(workload, costs);
  Prices prices(workload, priced.sharing, priced.fronts);
  prices.adapt(2000);
  double fastest = 1;
  for (const Candidate& each : *priced.fronts[0]) fastest = std::min(fastest, each.seconds);
  EXPECT_LE(prices.least_seconds(), 0.1 + fastest);
  EXPECT_GE(prices.least_seconds(), 0.1 + 0.97 * fastest);
}

}  // namespace
}  // namespace gradwire
