#include "plan/trial.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gradwire {
namespace {

/// One rank that tries plans until the trial is over. Returns how many steps each one had.
template <class Seconds>
std::map<std::size_t, int> run(Trial& trial, Seconds seconds_of) {
  std::map<std::size_t, int> steps;
  for (int step = 0; !trial.is_over(); ++step) {
    const std::size_t plan = trial.plan();
    ++steps[plan];
    trial.add(seconds_of(plan, step));
    if (trial.round_is_over()) trial.judge(trial.medians());
  }
  return steps;
}

TEST(Trial, takes_the_plan_with_the_shortest_steps) {
  Trial trial(3);
  const double seconds[] = {1.1, 1.0, 1.2};
  const auto steps = run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_EQ(trial.step_seconds(0), 1.1);
  EXPECT_EQ(steps, (std::map<std::size_t, int>{{0, 24}, {1, 24}, {2, 24}}));
}

TEST(Trial, of_one_plan_is_over_at_once) {
  const Trial trial(1);
  EXPECT_TRUE(trial.is_over());
  EXPECT_EQ(trial.best(), 0);
}

TEST(Trial, a_plan_far_behind_has_one_block_only) {
  Trial trial(3);
  const double seconds[] = {1.3, 1.0, 1.1};
  const auto steps = run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_EQ(steps.at(0), 6);
  EXPECT_EQ(steps.at(2), 24);
}

TEST(Trial, a_plan_that_is_known_has_no_turn_at_first) {
  Trial far_behind(2);
  far_behind.know(0, {10, 10, 11});
  EXPECT_EQ(run(far_behind, [](std::size_t, int) { return 1.0; }),
            (std::map<std::size_t, int>{{1, 6}}));
  EXPECT_EQ(far_behind.step_seconds(0), 10);
  Trial close(2);
  close.know(0, {1.2, 1.2});
  const auto steps = run(close, [](std::size_t plan, int) { return plan == 0 ? 0.9 : 1.0; });
  EXPECT_EQ(steps, (std::map<std::size_t, int>{{0, 18}, {1, 24}}));
  EXPECT_EQ(close.best(), 0);  // what was known counts no more than what was seen
}

TEST(Trial, is_over_when_all_others_are_far_behind) {
  Trial trial(2);
  const double seconds[] = {10, 1};
  EXPECT_EQ(run(trial, [&](std::size_t plan, int) { return seconds[plan]; }).at(1), 6);
  EXPECT_EQ(trial.best(), 1);
}

TEST(Trial, an_earlier_plan_wins_within_the_noise) {
  Trial trial(2);
  const double seconds[] = {1.015, 1.0};
  run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 0);
}

TEST(Trial, the_first_step_of_a_block_does_not_count) {
  Trial trial(2, {.block_steps = 3, .rounds = 2});
  int in_block = 0;
  run(trial, [&](std::size_t plan, int) {
    const bool first = in_block++ % 3 == 0;
    return first ? 100.0 : plan == 0 ? 2.0 : 1.9;
  });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_EQ(trial.step_seconds(1), 1.9);
}

TEST(Trial, single_long_steps_do_not_count) {
  std::mt19937 random(1);
  int right = 0;
  for (int job = 0; job < 200; ++job) {
    Trial trial(2);
    run(trial, [&](std::size_t plan, int) {
      const double disturbed = random() % 10 == 0 ? 5.0 : 1.0;
      const double noise = std::normal_distribution(1.0, 0.05)(random);
      return (plan == 0 ? 1.1 : 1.0) * noise * disturbed;
    });
    right += trial.best() == 1 ? 1 : 0;
  }
  EXPECT_GE(right, 195);
}

TEST(Trial, a_machine_that_becomes_slower_favours_nobody) {
  Trial trial(2);
  run(trial,
      [&](std::size_t plan, int step) { return (plan == 0 ? 1.0 : 0.96) * (1 + 0.01 * step); });
  EXPECT_EQ(trial.best(), 1);
  Trial other(2);
  run(other,
      [&](std::size_t plan, int step) { return (plan == 0 ? 0.96 : 1.0) * (1 + 0.01 * step); });
  EXPECT_EQ(other.best(), 0);
}

}  // namespace
}  // namespace gradwire
