#include "collective/option.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "collective/algorithms.h"
#include "collective/interpreter.h"
#include "collective/lifetimes.h"
#include "collective/validate.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

TEST(Options, are_as_many_as_in_the_paper_and_all_distinct) {
  for (const auto& [devices, expected] : {std::pair(1u, 174u), std::pair(2u, 4341u)}) {
    std::set<std::string> texts;
    std::size_t exact = 0;
    for (const Option& option : all_options(devices)) {
      texts.insert(option.text());
      exact += option.has_codec() ? 0 : 1;
    }
    EXPECT_EQ(all_options(devices).size(), expected);
    EXPECT_EQ(texts.size(), expected);
    EXPECT_EQ(exact, 9u);
  }
}

TEST(Options, are_what_their_texts_say) {
  for (const Option& option : all_options(2)) EXPECT_EQ(Option::parse(option.text()), option);
}

std::string refusal(const char* text) {
  try {
    static_cast<void>(Option::parse(text));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Options, that_cannot_be_followed_say_what_may_stand_there) {
  EXPECT_EQ(refusal("reduce_scatter-broadcast"),
            "'reduce_scatter-broadcast' is no way to exchange a tensor: instead of 'broadcast' "
            "there may be all_gather, encode");
  EXPECT_EQ(refusal("reduce_scatter"),
            "'reduce_scatter' is no way to exchange a tensor: at its end there must be all_gather, "
            "encode");
  EXPECT_EQ(refusal("all_reduce-decode"),
            "'all_reduce-decode' is no way to exchange a tensor: instead of 'decode' nothing may "
            "follow");
  for (const char* text :
       {"", "-", "decode", "encode", "encode--decode", "all_reduce-", "inside."}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(Options, become_legs_in_which_nothing_is_added_up) {
  using Kind = Hop::Kind;
  const auto legs =
      Option::parse("inside.reduce_scatter-encode-between.all_gather-inside.all_gather-decode")
          .legs();
  EXPECT_EQ(legs,
            (std::vector<Leg>{
                {true, {{Kind::to_owners, Level::inside}}},
                {false, {{Kind::to_all, Level::between}, {Kind::from_owners, Level::inside}}}}));
}

/// Hosts and ranks on each.
constexpr std::pair<Rank, Rank> kShapes[] = {{2, 2}, {3, 2}, {2, 3}, {4, 1}, {1, 4},
                                             {1, 1}, {5, 1}, {3, 3}, {1, 2}};

template <class Visit>
void each_case(Visit visit) {
  for (const Option& option : all_options()) {
    const Algorithm algorithm{option.text(), "", option.legs()};
    for (const auto& [hosts, per_host] : kShapes) {
      const Ranks ranks{.count = hosts * per_host, .per_host = per_host};
      SCOPED_TRACE(option.text() + ", " + std::to_string(hosts) + " hosts with " +
                   std::to_string(per_host));
      visit(algorithm, ranks);
    }
  }
}

TEST(Options, all_have_schedules_that_are_right) {
  std::size_t cases = 0;
  each_case([&](const Algorithm& algorithm, const Ranks& ranks) {
    ASSERT_EQ(algorithm.refusal(Collective::all_reduce, ranks), "");
    const auto schedules = make_all(algorithm, Collective::all_reduce, ranks);
    ASSERT_EQ(validate(schedules, Collective::all_reduce, ranks), std::nullopt);
    ++cases;
  });
  EXPECT_EQ(cases, 174 * std::size(kShapes));
}

TEST(Options, need_no_more_memory_than_they_say) {
  each_case([](const Algorithm& algorithm, const Ranks& ranks) {
    std::uint32_t most = 1;
    for (const Schedule& schedule : make_all(algorithm, Collective::all_reduce, ranks)) {
      most = std::max(most, most_copies(schedule));
    }
    EXPECT_EQ(algorithm.copies(Collective::all_reduce, ranks), most);
  });
}

TEST(Options, in_which_anybody_encodes_a_replica_have_the_first_rank_do_so) {
  each_case([](const Algorithm& algorithm, const Ranks& ranks) {
    bool any = false;
    for (const Schedule& schedule : make_all(algorithm, Collective::all_reduce, ranks)) {
      any = any || std::ranges::any_of(schedule.steps, &Step::replicated);
    }
    EXPECT_EQ(algorithm.replicates(Collective::all_reduce, ranks), any);
  });
}

/// Small integers, whose sums are exact; messages pass as they are.
struct Integers {
  using Value = std::int64_t;
  Value input(Rank rank, std::uint32_t chunk) const { return 1 + rank * 1000 + chunk; }
  Value take(const Value& value) const { return value; }
  Value encode(const Value& value, const Step&) const { return value; }
  Value add(const Value& sum, const Value& value) const { return sum + value; }
  Value finish(const Value& sum) const { return -sum; }
};

TEST(Options, give_the_right_numbers_in_any_order) {
  std::mt19937 random(1);
  each_case([&](const Algorithm& algorithm, const Ranks& ranks) {
    const auto schedules = make_all(algorithm, Collective::all_reduce, ranks);
    Interpreter<Integers> interpreter(schedules, Integers{});
    const auto next = [&](std::size_t able) {
      return std::pair<std::size_t, std::size_t>(random() % able, 1 + random() % 3);
    };
    ASSERT_EQ(interpreter.run(next), std::nullopt);
    for (std::uint32_t chunk = 0; chunk < interpreter.chunks(); ++chunk) {
      std::int64_t sum = 0;
      for (Rank rank = 0; rank < ranks.count; ++rank) sum += Integers().input(rank, chunk);
      for (Rank rank = 0; rank < ranks.count; ++rank) {
        ASSERT_EQ(interpreter.output(rank, chunk), -sum) << "rank " << rank;
      }
    }
  });
}

/// Sums that several hosts have are encoded by all of them, to the same bytes.
TEST(Options, in_which_replicas_are_encoded_keep_what_they_lack_once) {
  const Ranks ranks{.count = 4, .per_host = 2};
  const Algorithm algorithm =
      find_algorithm("inside.reduce_scatter-between.all_reduce-encode-inside.all_gather-decode");
  const auto right = make_all(algorithm, Collective::all_reduce, ranks);
  ASSERT_EQ(validate(right, Collective::all_reduce, ranks), std::nullopt);
  const auto is_replica = [](const Step& step) { return step.replicated; };
  const auto keeps = [](const Step& step) {
    return step.op == Op::keep && step.sum == Sum::delivered;
  };
  for (const Rank rank : {0u, 2u}) {
    ASSERT_EQ(std::ranges::count_if(right[rank].steps, is_replica), 1);
    ASSERT_EQ(std::ranges::count_if(right[rank].steps, keeps), rank == 0 ? 1 : 0);
  }
  auto alone = right;
  std::erase_if(alone[0].steps, keeps);
  EXPECT_NE(validate(alone, Collective::all_reduce, ranks), std::nullopt);
  auto different = right;
  std::ranges::find_if(different[2].steps, is_replica)->replicated = false;
  EXPECT_NE(validate(different, Collective::all_reduce, ranks), std::nullopt);
}

}  // namespace
}  // namespace gradwire
