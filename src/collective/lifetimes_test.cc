#include "collective/lifetimes.h"

#include <gtest/gtest.h>

#include <numeric>

#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

Lifetimes of(Program& program) { return lifetimes_of(std::move(program).done()); }

TEST(Lifetimes, a_sum_that_begins_with_the_input_takes_its_place) {
  Program program(Collective::all_reduce, 1);
  program.load(0).receive(1, 0).decode_add(kIncoming, 0).encode(Place::sum, 0).send(1);
  program.echo(Place::sum, 0);
  EXPECT_EQ(of(program).in_one_place, std::vector<bool>{true});
}

TEST(Lifetimes, an_input_that_is_read_after_the_sum_began_is_kept) {
  Program program(Collective::all_reduce, 3);
  program.receive(1, 0).decode(kIncoming, Place::sum, 0).add(0).store(0);          // added later
  program.load(1).receive(1, 0).decode_add(kIncoming, 1).encode(Place::input, 1);  // sent later
  program.send(1).store(1);
  program.load(2).receive(1, 0).decode_add(kIncoming, 2).encode(Place::sum, 2).send(1);  // the
                                                                                         // result
  EXPECT_EQ(of(program).in_one_place, (std::vector<bool>{false, false, false}));
}

TEST(Lifetimes, a_sum_that_is_read_after_the_output_was_written_is_kept) {
  Program program(Collective::all_reduce, 1);
  program.load(0).receive(1, 0).decode(kIncoming, Place::output, 0).encode(Place::sum, 0).send(1);
  EXPECT_EQ(of(program).in_one_place, std::vector<bool>{false});
}

TEST(Lifetimes, chunks_without_a_sum_have_none_to_keep) {
  Program program(Collective::all_reduce, 1);
  program.encode(Place::input, 0).send(1).receive(1, 0).decode(kIncoming, Place::output, 0);
  EXPECT_EQ(of(program).in_one_place, std::vector<bool>{false});
}

TEST(Lifetimes, two_ranks_need_no_memory_for_sums) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Rank me : {0u, 1u}) {
      const Schedule schedule = algorithm.make(Collective::all_reduce, {2, 1, 0}, me);
      const Lifetimes lifetimes = lifetimes_of(schedule);
      for (const Step& step : schedule.steps) {
        if (step.op != Op::decode_add) continue;
        EXPECT_TRUE(lifetimes.in_one_place[step.first]) << algorithm.name << ", rank " << me;
      }
    }
  }
}

TEST(Lifetimes, a_sum_whose_rest_is_kept_after_its_echo_is_kept) {
  Program program(Collective::all_reduce, 1);
  program.load(0).encode(Place::sum, 0).send(1).echo(Place::sum, 0).keep(Place::sum, 0);
  EXPECT_EQ(of(program).in_one_place, std::vector<bool>{false});
}

TEST(Lifetimes, a_message_is_needed_until_its_last_use_before_the_slot_is_filled_again) {
  Program program(Collective::all_reduce, 1);
  program.receive(1, 0);                          // 0
  program.send(2, kIncoming).send(3, kIncoming);  // 1, 2
  program.decode(kIncoming, Place::output, 0);    // 3: the last
  program.receive(2, 0);                          // 4
  program.decode(kIncoming, Place::output, 0);    // 5: the last
  EXPECT_EQ(of(program).last_use, (std::vector<bool>{false, false, false, true, false, true}));
}

TEST(Lifetimes, the_last_step_that_changes_what_is_kept_is_known_of_every_chunk) {
  Program program(Collective::all_reduce, 3);
  program.encode(Place::input, {0, 2}).send(1).keep(Place::input, {0, 2});             // 0, 1, 2
  program.load(2).receive(1, 2).decode_add(kIncoming, 2);                              // 3, 4, 5
  program.encode(Place::sum, {1, 2}).send(1).keep(Place::sum, 1).echo(Place::sum, 1);  // 8: keep
  EXPECT_EQ(of(program).last_kept, (std::vector<std::size_t>{2, 8, 3}));
}

TEST(Lifetimes, sends_are_counted_where_a_message_is_made_or_used_or_else_received) {
  Program program(Collective::all_reduce, 2);
  program.encode(Place::input, 0).send(1).send(2);                               // 0: twice
  program.decode(kOutgoing, Place::output, 0);                                   // 3
  program.receive(1, 1).send(2, kIncoming).decode(kIncoming, Place::output, 1);  // 6: once
  program.load(1);                                                               // 7
  program.receive(2, 1).decode_add(kIncoming, 1).send(1, kIncoming);             // 9: once
  program.encode(Place::sum, 1).decode(kOutgoing, Place::output, 1);             // 11: never
  program.receive(1, 0).send(2, kIncoming);                                      // 13: passed on
  EXPECT_EQ(of(program).sends,
            (std::vector<std::uint32_t>{2, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0}));
}

TEST(Lifetimes, every_rank_knows_what_it_sends) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter,
                                        Collective::all_gather, Collective::broadcast}) {
      for (const Ranks ranks : {Ranks{1, 1, 0}, Ranks{2, 2, 1}, Ranks{6, 2, 0}, Ranks{9, 3, 4}}) {
        if (!algorithm.refusal(collective, ranks).empty()) continue;
        for (Rank me = 0; me < ranks.count; ++me) {
          const Schedule schedule = algorithm.make(collective, ranks, me);
          const auto sends = lifetimes_of(schedule).sends;
          const auto sent = std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                          [](const Step& step) { return step.op == Op::send; });
          EXPECT_EQ(std::accumulate(sends.begin(), sends.end(), 0u), sent)
              << algorithm.name << ", " << name_of(collective) << ", rank " << me;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire
