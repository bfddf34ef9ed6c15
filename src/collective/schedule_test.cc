#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "collective/algorithms.h"
#include "collective/interpreter.h"
#include "collective/lifetimes.h"
#include "collective/validate.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr Collective kCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                       Collective::all_gather, Collective::broadcast,
                                       Collective::barrier};

/// Calls visit for everything that exists with up to 17 ranks.
template <class Visit>
void each_case(Visit visit) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Collective collective : kCollectives) {
      for (Rank count = 1; count <= 17; ++count) {
        for (Rank per_host = 1; per_host <= count; ++per_host) {
          if (count % per_host != 0) continue;
          for (const Rank root : {Rank{0}, count / 2, count - 1}) {
            const Ranks ranks{count, per_host, root};
            if (!algorithm.refusal(collective, ranks).empty()) continue;
            visit(algorithm, collective, ranks);
            if (collective != Collective::broadcast) break;
          }
          if (!algorithm.name.starts_with("hierarchical")) break;
        }
      }
    }
  }
}

std::string name(const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
  return std::string(algorithm.name) + " " + name_of(collective) + ", " +
         std::to_string(ranks.count) + " ranks, " + std::to_string(ranks.per_host) +
         " per host, root " + std::to_string(ranks.root);
}

TEST(Schedule, every_algorithm_up_to_17_ranks_is_valid) {
  int cases = 0;
  each_case([&](const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
    const auto schedules = make_all(algorithm, collective, ranks);
    EXPECT_EQ(validate(schedules, collective, ranks), std::nullopt)
        << name(algorithm, collective, ranks);
    ++cases;
  });
  EXPECT_GT(cases, 200);
}

/// Data may be of half precision: what is not complete must not be rounded to that.
TEST(Schedule, sums_stay_in_fp32_until_they_are_complete) {
  each_case([&](const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
    for (const Schedule& schedule : make_all(algorithm, collective, ranks)) {
      std::vector<bool> complete(schedule.chunks);
      for (const Step& step : schedule.steps) {
        for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
          if (step.op == Op::finish) complete[chunk] = true;
          ASSERT_TRUE(step.op != Op::store || complete[chunk])
              << name(algorithm, collective, ranks);
        }
      }
    }
  });
}

TEST(Schedule, no_chunk_is_in_more_of_a_ranks_messages_than_its_algorithm_says) {
  each_case([&](const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
    std::uint32_t most = 1;
    for (const Schedule& schedule : make_all(algorithm, collective, ranks)) {
      most = std::max(most, most_copies(schedule));
    }
    EXPECT_EQ(algorithm.copies(collective, ranks), most) << name(algorithm, collective, ranks);
  });
}

TEST(Schedule, every_collective_has_an_algorithm) {
  for (const Collective collective : kCollectives) {
    int usable = 0;
    for (const Algorithm& algorithm : algorithms()) {
      usable += algorithm.refusal(collective, {.count = 5}).empty() ? 1 : 0;
    }
    EXPECT_GT(usable, 0) << name_of(collective);
  }
}

/// Small integers, whose sums are exact; messages pass as they are.
struct Integers {
  using Value = std::int64_t;
  static Value of(Rank rank, std::uint32_t chunk) { return 1 + rank * 1000 + chunk; }
  Value input(Rank rank, std::uint32_t chunk) const { return of(rank, chunk); }
  Value take(const Value& value) const { return 3 * value; }
  Value encode(const Value& value, const Step&) const { return value; }
  Value add(const Value& sum, const Value& value) const { return sum + value; }
  Value finish(const Value& sum) const { return -sum; }
};

std::int64_t expected(Collective collective, const Ranks& ranks, std::uint32_t chunk) {
  if (collective == Collective::broadcast) return Integers::of(ranks.root, chunk);
  if (collective == Collective::all_gather) return Integers::of(chunk, chunk);
  std::int64_t sum = 0;
  for (Rank rank = 0; rank < ranks.count; ++rank) sum += Integers::of(rank, chunk);
  if (collective != Collective::barrier) return -3 * sum;
  return ranks.count == 1 ? sum : -sum;  // nobody has to add up what one rank has
}

template <class Next>
void expect_right_in_order(const Algorithm& algorithm, Collective collective, const Ranks& ranks,
                           Next next) {
  const auto schedules = make_all(algorithm, collective, ranks);
  Interpreter<Integers> interpreter(schedules, Integers{});
  ASSERT_EQ(interpreter.run(next), std::nullopt) << name(algorithm, collective, ranks);
  for (Rank rank = 0; rank < ranks.count; ++rank) {
    for (std::uint32_t chunk = 0; chunk < interpreter.chunks(); ++chunk) {
      if (collective == Collective::reduce_scatter && chunk != rank) continue;
      ASSERT_EQ(interpreter.output(rank, chunk), expected(collective, ranks, chunk))
          << name(algorithm, collective, ranks) << ", rank " << rank << ", chunk " << chunk;
    }
  }
}

TEST(Schedule, random_orders_give_the_right_numbers) {
  std::mt19937 random(1);
  each_case([&](const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
    expect_right_in_order(algorithm, collective, ranks, [&](std::size_t able) {
      return std::pair<std::size_t, std::size_t>(random() % able, 1 + random() % 3);
    });
  });
}

TEST(Schedule, one_rank_always_last_gives_the_right_numbers) {
  each_case([&](const Algorithm& algorithm, Collective collective, const Ranks& ranks) {
    for (const bool newest :
         {false, true}) {  // who could go on longest ago, or who just became able
      expect_right_in_order(algorithm, collective, ranks, [&](std::size_t able) {
        return std::pair<std::size_t, std::size_t>(newest ? able - 1 : 0, 1);
      });
    }
  });
}

TEST(Schedule, a_thousand_ranks_are_built_and_proved) {
  for (const Algorithm& algorithm : algorithms()) {
    const Ranks ranks{.count = 1024, .per_host = 8};
    const auto schedules = make_all(algorithm, Collective::all_reduce, ranks);
    EXPECT_EQ(validate(schedules, Collective::all_reduce, ranks), std::nullopt) << algorithm.name;
  }
}

// ---------------------------------------------------------------------------------------------
// The validator notices

class BrokenSchedule : public testing::Test {
 protected:
  std::optional<std::string> problem(Rank rank, auto change) {
    auto schedules = make_all(find_algorithm("sra"), Collective::all_reduce, ranks_);
    change(schedules[rank].steps);
    return validate(schedules, Collective::all_reduce, ranks_);
  }
  static auto find(std::vector<Step>& steps, Op op) {
    return std::find_if(steps.begin(), steps.end(), [&](const Step& s) { return s.op == op; });
  }
  Ranks ranks_{.count = 4};
};

TEST_F(BrokenSchedule, any_step_left_out_is_noticed) {
  const std::size_t steps =
      find_algorithm("sra").make(Collective::all_reduce, ranks_, 1).steps.size();
  for (std::size_t i = 0; i < steps; ++i) {
    EXPECT_NE(problem(1, [&](auto& program) { program.erase(program.begin() + i); }), std::nullopt)
        << "step " << i;
  }
}

TEST_F(BrokenSchedule, any_step_done_twice_is_noticed_unless_it_changes_nothing) {
  const auto program = find_algorithm("sra").make(Collective::all_reduce, ranks_, 1).steps;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto found =
        problem(1, [&](auto& steps) { steps.insert(steps.begin() + i, program[i]); });
    const bool harmless = program[i].op == Op::decode || program[i].op == Op::echo;
    EXPECT_EQ(found == std::nullopt, harmless) << "step " << i;
  }
}

TEST_F(BrokenSchedule, a_sum_that_nobody_counts_or_two_ranks_is_noticed) {
  for (const char* algorithm : {"sra", "allgather"}) {  // one rank finishes a sum, or all
    for (const bool counts : {false, true}) {
      auto schedules = make_all(find_algorithm(algorithm), Collective::all_reduce, ranks_);
      for (Schedule& schedule : schedules) find(schedule.steps, Op::finish)->counts = counts;
      const auto found = validate(schedules, Collective::all_reduce, ranks_);
      const bool right = counts && std::string(algorithm) == "sra";
      EXPECT_EQ(found == std::nullopt, right) << algorithm << ", " << counts;
    }
  }
}

TEST_F(BrokenSchedule, waiting_in_a_circle_is_noticed) {
  Ranks two{.count = 2};
  auto schedules = make_all(find_algorithm("sra"), Collective::all_reduce, two);
  for (Schedule& schedule : schedules) {  // both receive before they send
    const auto receive = find(schedule.steps, Op::receive);
    std::rotate(schedule.steps.begin(), receive, receive + 1);
  }
  const auto found = validate(schedules, Collective::all_reduce, two);
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("waits forever"), std::string::npos) << *found;
}

TEST_F(BrokenSchedule, an_owner_that_keeps_its_exact_sum_is_noticed) {
  const auto found = problem(
      2, [&](auto& steps) { *find(steps, Op::echo) = {.op = Op::store, .first = 2, .count = 1}; });
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("differs"), std::string::npos) << *found;
}

TEST_F(BrokenSchedule, a_message_overwritten_before_its_use_is_noticed) {
  const auto found = problem(0, [&](auto& steps) {
    const auto encode = find(steps, Op::encode);
    steps.insert(encode, *encode);
  });
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("still in use"), std::string::npos) << *found;
}

TEST_F(BrokenSchedule, what_a_message_lacks_is_kept_before_the_output_replaces_the_input) {
  auto schedules = make_all(find_algorithm("tree"), Collective::all_reduce, ranks_);
  auto& leaf = schedules[1].steps;
  const auto keep = find(leaf, Op::keep);
  std::rotate(keep, keep + 1, leaf.end());
  const auto found = validate(schedules, Collective::all_reduce, ranks_);
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("the input is gone"), std::string::npos) << *found;
}

TEST_F(BrokenSchedule, what_rounding_takes_is_kept_by_one_rank_alone) {
  for (const Rank too_many : {0u, 2u}) {
    auto schedules = make_all(find_algorithm("allgather"), Collective::all_reduce, ranks_);
    auto& steps = schedules[too_many].steps;
    const Step keep{.op = Op::keep_rounding, .count = 1};
    ASSERT_EQ(steps.back() == keep, too_many == 0);
    steps.push_back(keep);
    const auto found = validate(schedules, Collective::all_reduce, ranks_);
    ASSERT_TRUE(found);
    EXPECT_NE(found->find("rounding"), std::string::npos) << *found;
  }
}

TEST_F(BrokenSchedule, a_tensor_that_is_not_prepared_is_noticed) {
  const std::size_t steps =
      find_algorithm("sra").make(Collective::all_reduce, ranks_, 1).preparation.size();
  ASSERT_EQ(steps, 3u);
  for (std::size_t i = 0; i < steps; ++i) {
    auto schedules = make_all(find_algorithm("sra"), Collective::all_reduce, ranks_);
    schedules[1].preparation.erase(schedules[1].preparation.begin() + i);
    EXPECT_TRUE(validate(schedules, Collective::all_reduce, ranks_)) << "step " << i;
  }
}

TEST(Hierarchical, exact_inside_a_host_is_compressed_once_it_leaves) {
  const Ranks ranks{.count = 6, .per_host = 3};
  for (const Schedule& schedule :
       make_all(find_algorithm("hierarchical-exact"), Collective::all_reduce, ranks)) {
    for (const Step& step : schedule.steps) {
      if (step.op != Op::encode) continue;
      EXPECT_EQ(step.exact, step.place == Place::input);
    }
  }
}

// ---------------------------------------------------------------------------------------------

TEST(FindAlgorithm, an_unknown_name_lists_what_exists) {
  try {
    find_algorithm("snake", Collective::all_reduce, {.count = 4});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "there is no algorithm 'snake'; take one of sra, ring, tree, allgather, "
                 "hierarchical, hierarchical-exact, or write one out, as in "
                 "'encode-all_to_all-decode-encode-all_gather-decode'");
  }
}

TEST(FindAlgorithm, ranks_that_cannot_use_it_are_told_why) {
  try {
    find_algorithm("hierarchical", Collective::all_reduce, {.count = 4, .per_host = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "hierarchical cannot be taken: it needs the same number of ranks on every host; "
                 "take one of sra, ring, tree, allgather");
  }
  EXPECT_THROW(find_algorithm("ring", Collective::barrier, {.count = 4}), Error);
  EXPECT_EQ(find_algorithm("tree", Collective::barrier, {.count = 4}).name, "tree");
  EXPECT_THROW(find_algorithm("encode@other-all_gather-decode"), Error);
}

}  // namespace
}  // namespace gradwire
