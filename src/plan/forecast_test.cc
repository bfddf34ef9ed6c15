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

/// Tensors that are ready at these times, the last of which ends backward. Forward takes no time.
Workload ready_at(std::vector<double> times) {
  Workload workload;
  for (const double time : times) workload.tensors.push_back({"", 1, time});
  workload.backward_seconds = times.back();
  return workload;
}

double step_of(const Workload& workload, const Sharing& sharing, const Chain& chain) {
  Forecast forecast(workload, sharing);
  forecast.set(std::vector<const Chain*>(workload.tensors.size(), &chain));
  return forecast.step_seconds();
}

TEST(Forecast, pieces_overlap) {
  // Encoded 0-1, 1-2; sent 1-3, 3-5; decoded 3-4, 5-6.
  Chain chain{.tasks = {{Resource::codec, false, 1},
                        {Resource::sending, false, 2},
                        {Resource::codec, false, 1}},
              .pieces = 2};
  EXPECT_DOUBLE_EQ(step_of(ready_at({0}), {}, chain), 6);
  EXPECT_DOUBLE_EQ(seconds_alone(chain), 6);
  // In three: encoded until 3; sent 1-3, 3-5, 5-7; decoded 3-4, 5-6, 7-8.
  chain.pieces = 3;
  EXPECT_DOUBLE_EQ(step_of(ready_at({0}), {}, chain), 8);
  chain.preparation = 0.5;
  EXPECT_DOUBLE_EQ(step_of(ready_at({0}), {}, chain), 8.5);
}

TEST(Forecast, computing_goes_on_when_codecs_leave_the_device) {
  // Computed 0-2; encoded 2-3; computed 3-5; encoded 5-6. Sent 3-6 and 6-9.
  const Chain chain{.tasks = {{Resource::codec, false, 1}, {Resource::sending, false, 3}}};
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 4}), {.one_device = true}, chain), 9);
  // With a device each: encoded 2-3 and 4-5; sent 3-6 and 6-9.
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 4}), {}, chain), 9);
  // Ready at 2 and 20: the second is computed 3-21, encoded 21-22 and sent 22-25.
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 20}), {.one_device = true}, chain), 25);
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 20}), {}, chain), 24);
}

TEST(Forecast, computing_is_interrupted_in_the_middle) {
  // Computed 0-2; sent 2-3; decoded 3-4, while computing waits with one of two seconds left; that
  // is done at 5, and what was computed is decoded 6-7.
  const Chain chain{.tasks = {{Resource::sending, false, 1}, {Resource::codec, false, 1}}};
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 4}), {.one_device = true}, chain), 7);
}

TEST(Forecast, computing_is_slower_beside_exchanges) {
  // Sent 2-3, while half a second of two is computed; the rest until 4.5; sent until 5.5.
  const Chain chain{.tasks = {{Resource::sending, false, 1}}};
  EXPECT_DOUBLE_EQ(step_of(ready_at({2, 4}), {.interference = 2}, chain), 5.5);
}

TEST(Forecast, shows_what_it_has_done) {
  std::mt19937 random(3);
  for (int job = 0; job < 50; ++job) {
    const Workload workload = random_workload(random, 12);
    const Sharing sharing{.one_device = job % 2 == 0};
    std::deque<Chain> chains;
    std::vector<const Chain*> set;
    std::array<double, kResources> busy{};
    for (int i = 0; i < 12; ++i) {
      set.push_back(&chains.emplace_back(random_chain(random)));
      for (std::size_t r = 0; r < kResources; ++r) busy[r] += busy_seconds(chains.back())[r];
    }
    Forecast forecast(workload, sharing);
    forecast.set(set);
    double computed = 0, end = 0;
    std::array<double, kResources> free{}, done{};
    double compute_free = 0;
    for (const Interval& each : forecast.timeline()) {
      const auto resource = static_cast<std::size_t>(each.resource);
      const bool computing = each.kind == Interval::Kind::computing;
      double& from = computing && !sharing.one_device ? compute_free : free[resource];
      ASSERT_GE(each.begin, from - 1e-9);  // one thing at a time
      from = each.end;
      (computing ? computed : done[resource]) += each.end - each.begin;
      if (!computing) end = std::max(end, each.end);
    }
    EXPECT_NEAR(computed, workload.tensors.back().ready_seconds, 1e-9);
    for (std::size_t r = 0; r < kResources; ++r) EXPECT_NEAR(done[r], busy[r], 1e-9);
    double last = 0;
    for (std::size_t i = 0; i < 12; ++i) last = std::max(last, forecast.end_of(i));
    EXPECT_LE(end, last + 1e-9);  // a tensor without tasks ends when it is ready
  }
}

}  // namespace
}  // namespace gradwire
