#include "collective/lifetimes.h"

#include <gtest/gtest.h>

#include <numeric>

#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

Lifetimes of(Program& program) { return lifetimes_of(std::move(program).done()); }

TEST(Lifetimes, a_sum_that_begins_with_the_data_takes_its_place) {
  Program program(1);
  program.load(0).receive(1).decode_add(kIncoming, 0).encode(Place::sum, 0).send(1);
  program.decode(kOutgoing, Place::data, 0);
  EXPECT_EQ(of(program).sum_in_data, std::vector<bool>{true});
}

TEST(Lifetimes, data_that_is_read_after_the_sum_began_is_kept) {
  Program program(3);
  program.receive(1).decode(kIncoming, Place::sum, 0).add(0).store(0);         // added later
  program.load(1).receive(1).decode_add(kIncoming, 1).encode(Place::data, 1);  // sent later
  program.send(1).store(1);
  program.load(2).receive(1).decode_add(kIncoming, 2).encode(Place::sum, 2).send(1);  // the result
  EXPECT_EQ(of(program).sum_in_data, (std::vector<bool>{false, false, false}));
}

TEST(Lifetimes, a_sum_that_is_read_after_the_data_came_back_is_kept) {
  Program program(1);
  program.load(0).receive(1).decode(kIncoming, Place::data, 0).encode(Place::sum, 0).send(1);
  EXPECT_EQ(of(program).sum_in_data, std::vector<bool>{false});
}

TEST(Lifetimes, chunks_without_a_sum_have_none_to_keep) {
  Program program(1);
  program.encode(Place::data, 0).send(1).receive(1).decode(kIncoming, Place::data, 0);
  EXPECT_EQ(of(program).sum_in_data, std::vector<bool>{false});
}

TEST(Lifetimes, two_ranks_need_no_memory_for_sums) {
  for (const Algorithm* algorithm : algorithms()) {
    for (const Rank me : {0u, 1u}) {
      const Schedule schedule = algorithm->make(Collective::all_reduce, {2, 1, 0}, me);
      const Lifetimes lifetimes = lifetimes_of(schedule);
      for (const Step& step : schedule.steps) {
        if (step.op != Op::decode_add) continue;
        EXPECT_TRUE(lifetimes.sum_in_data[step.first]) << algorithm->name << ", rank " << me;
      }
    }
  }
}

TEST(Lifetimes, an_owner_that_decodes_its_own_message_hears_an_echo) {
  Program program(2);
  program.load(0).receive(1).decode_add(kIncoming, 0).encode(Place::sum, 0).send(1);
  program.decode(kOutgoing, Place::data, 0);             // 5: an echo
  program.receive(1).decode(kIncoming, Place::data, 1);  // 7: another's message
  program.encode(Place::data, 1).send(1).receive(1).decode(kIncoming, Place::data, 1);
  program.decode(kOutgoing, Place::data, 1);  // 12: written since
  const auto echo = of(program).echo;
  for (std::size_t i = 0; i < echo.size(); ++i) EXPECT_EQ(echo[i], i == 5) << "step " << i;
}

TEST(Lifetimes, a_sum_with_its_own_memory_has_no_echo_in_the_data) {
  Program program(1);
  program.receive(1).decode(kIncoming, Place::sum, 0).add(0).encode(Place::sum, 0).send(1);
  program.decode(kOutgoing, Place::data, 0);
  const auto echo = of(program).echo;
  EXPECT_EQ(std::count(echo.begin(), echo.end(), true), 0);
}

TEST(Lifetimes, a_message_is_needed_until_its_last_use_before_the_slot_is_filled_again) {
  Program program(1);
  program.receive(1);                             // 0
  program.send(2, kIncoming).send(3, kIncoming);  // 1, 2
  program.decode(kIncoming, Place::data, 0);      // 3: the last
  program.receive(2);                             // 4
  program.decode(kIncoming, Place::data, 0);      // 5: the last
  EXPECT_EQ(of(program).last_use, (std::vector<bool>{false, false, false, true, false, true}));
}

TEST(Lifetimes, sends_are_counted_where_it_is_said_what_a_message_holds) {
  Program program(2);
  program.encode(Place::data, 0).send(1).send(2);                           // 0: twice
  program.decode(kOutgoing, Place::data, 0);                                // 3
  program.receive(1).send(2, kIncoming).decode(kIncoming, Place::data, 1);  // 6: once
  program.load(1);                                                          // 7
  program.receive(2).decode_add(kIncoming, 1).send(1, kIncoming);           // 9: once
  program.encode(Place::sum, 1).decode(kOutgoing, Place::data, 1);          // 11: never
  EXPECT_EQ(of(program).sends, (std::vector<std::uint32_t>{2, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0}));
}

TEST(Lifetimes, messages_of_complete_sums_are_told_from_those_of_partial_ones) {
  Program program(1);
  program.load(0).encode(Place::sum, 0).send(1).receive(1).decode_add(kIncoming, 0).finish(0);
  program.encode(Place::sum, 0).send(1);  // 6
  const auto of_finished = of(program).of_finished;
  for (std::size_t i = 0; i < of_finished.size(); ++i) EXPECT_EQ(of_finished[i], i == 6) << i;
}

TEST(Lifetimes, every_rank_knows_what_it_sends) {
  for (const Algorithm* algorithm : algorithms()) {
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter,
                                        Collective::all_gather, Collective::broadcast}) {
      for (const Ranks ranks : {Ranks{1, 1, 0}, Ranks{2, 2, 1}, Ranks{6, 2, 0}, Ranks{9, 3, 4}}) {
        if (!algorithm->refusal(collective, ranks).empty()) continue;
        for (Rank me = 0; me < ranks.count; ++me) {
          const Schedule schedule = algorithm->make(collective, ranks, me);
          const auto sends = lifetimes_of(schedule).sends;
          const auto sent = std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                          [](const Step& step) { return step.op == Op::send; });
          EXPECT_EQ(std::accumulate(sends.begin(), sends.end(), 0u), sent)
              << algorithm->name << ", " << name_of(collective) << ", rank " << me;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire
