#include "plan/forecast.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace gradwire {
namespace {

Chain random_chain(std::mt19937& random) {
  Chain chain;
  const std::size_t tasks = random() % 6;
  chain.pieces = 1 + random() % Chain::kMostPieces;
  if (random() % 3 == 0) chain.preparation = std::uniform_real_distribution(0.0, 1.0)(random);
  for (std::size_t i = 0; i < tasks; ++i) {
    chain.tasks.push_back({static_cast<Resource>(random() % kResources), i > 0 && random() % 3 == 0,
                     std::uniform_real_distribution(0.0, 2.0)(random) / chain.pieces});
  }
  return chain;
}

Workload random_workload(std::mt19937& random, std::size_t tensors) {
  Workload workload;
  workload.name = "random";
  double ready = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    ready += std::uniform_real_distribution(0.0, 4.0)(random) * (random() % 2);
    workload.tensors.push_back({std::to_string(i), 1, ready});
  }
  workload.forward_seconds = 1;
  workload.backward_seconds = ready + 0.5;
  return workload;
}

TEST(Forecast, of_a_trial_is_that_of_the_change) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Sharing sharing{.one_device = random() % 2 == 0,
                          .interference = random() % 2 == 0 ? 1 : 1.5};
    const std::size_t tensors = 1 + random() % 40;
    const Workload workload = random_workload(random, tensors);
    std::deque<Chain> chains;  // which stay where they are
    std::vector<const Chain*> set;
    for (std::size_t t = 0; t < tensors; ++t)
      set.push_back(&chains.emplace_back(random_chain(random)));
    Forecast forecast(workload, sharing);
    forecast.set(set);
    for (int change = 0; change < 20; ++change) {
      const std::size_t tensor = random() % tensors;
      const Chain& other = chains.emplace_back(random_chain(random));
      auto changed = set;
      changed[tensor] = &other;
      Forecast anew(workload, sharing);
      anew.set(changed);
      ASSERT_NEAR(forecast.with(tensor, other), anew.step_seconds(), 1e-9) << i << ", " << change;
      ASSERT_NEAR(forecast.with(tensor, other, anew.step_seconds() * 1.001), anew.step_seconds(),
                  1e-9);
      const double limit = anew.step_seconds() * 0.999;
      ASSERT_GE(forecast.with(tensor, other, limit), limit);
      if (random() % 2 == 0) continue;
      set = changed;
      forecast.set(tensor, other);
      ASSERT_NEAR(forecast.step_seconds(), anew.step_seconds(), 1e-9);
    }
  }
}

}  // namespace
}  // namespace gradwire
