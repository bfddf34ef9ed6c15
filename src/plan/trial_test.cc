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
    if (trial.round_is_over()) trial.judge(trial.usual_seconds());
  }
  return steps;
}

TEST(Trial, takes_the_plan_with_the_shortest_steps) {
  Trial trial(3);
  const double seconds[] = {1.15, 1.0, 1.2};
  const auto steps = run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_DOUBLE_EQ(trial.step_seconds(0), 1.15);
  EXPECT_EQ(steps, (std::map<std::size_t, int>{{0, 26}, {1, 26}, {2, 26}}));
}

TEST(Trial, of_one_plan_is_over_at_once) {
  const Trial trial(1);
  EXPECT_TRUE(trial.is_over());
  EXPECT_EQ(trial.best(), 0);
}

TEST(Trial, a_plan_far_behind_has_one_block_only) {
  Trial trial(3);
  const double seconds[] = {2.1, 1.0, 1.9};
  const auto steps = run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_EQ(steps.at(0), 13);
  EXPECT_EQ(steps.at(2), 26);
}

TEST(Trial, is_over_when_all_others_are_far_behind) {
  Trial trial(2);
  const double seconds[] = {10, 1};
  EXPECT_EQ(run(trial, [&](std::size_t plan, int) { return seconds[plan]; }).at(1), 13);
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
  EXPECT_DOUBLE_EQ(trial.step_seconds(1), 1.9);
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
  EXPECT_GE(right, 190);
}

TEST(Trial, close_plans_have_more_rounds_until_one_is_behind) {
  Trial trial(3);
  const double seconds[] = {1.08, 1.0, 1.2};
  const auto steps = run(trial, [&](std::size_t plan, int) { return seconds[plan]; });
  EXPECT_EQ(trial.best(), 1);
  EXPECT_EQ(steps, (std::map<std::size_t, int>{{0, 4 * 13}, {1, 4 * 13}, {2, 2 * 13}}));
}

TEST(Trial, plans_that_stay_close_are_judged_after_six_rounds) {
  Trial trial(2);
  const double seconds[] = {1.04, 1.0};
  EXPECT_EQ(run(trial, [&](std::size_t plan, int) { return seconds[plan]; }).at(1), 6 * 13);
  EXPECT_EQ(trial.best(), 1);
}

TEST(Trial, noise_hides_a_small_difference_seldom) {
  std::mt19937 random(1);
  int right = 0;
  for (int job = 0; job < 200; ++job) {
    Trial trial(3);
    run(trial, [&](std::size_t plan, int) {
      const double seconds[] = {1.3, 1.05, 1.0};
      return seconds[plan] * std::normal_distribution(1.0, 0.1)(random);
    });
    right += trial.best() == 2 ? 1 : 0;
  }
  EXPECT_GE(right, 180);
}

TEST(Trial, steps_that_differ_by_turns_favour_nobody) {
  for (const int period : {2, 3, 4}) {
    for (int begin = 0; begin < period; ++begin) {
      for (const double exact : {1.0, 0.9}) {
        Trial trial(3);
        run(trial, [&](std::size_t plan, int step) {
          const bool is_long = (step + begin) % period == 0;
          return (plan == 0 ? exact : 1.0) * (is_long ? 10 : 1);
        });
        EXPECT_EQ(trial.best(), 0) << period << ' ' << begin;
        EXPECT_NEAR(trial.step_seconds(1), trial.step_seconds(2), 1e-9) << period << ' ' << begin;
      }
    }
  }
}

TEST(Trial, a_machine_that_becomes_slower_favours_nobody) {
  for (const std::size_t better : {0U, 1U}) {
    Trial trial(2);
    run(trial, [&](std::size_t plan, int step) {
      return (plan == better ? 0.96 : 1.0) * (1 + 0.01 * step);
    });
    EXPECT_EQ(trial.best(), better);
  }
}

TEST(MiddleMean, leaves_out_a_quarter_on_either_side) {
  EXPECT_EQ(middle_mean({}), 0);
  EXPECT_EQ(middle_mean({3}), 3);
  EXPECT_EQ(middle_mean({1, 2}), 1.5);
  EXPECT_EQ(middle_mean({100, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace gradwire
