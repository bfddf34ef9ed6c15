#include "trace/timeline.h"

#include <gtest/gtest.h>

#include <chrono>

namespace gradwire::trace {
namespace {

constexpr Text kSend = 1, kReceive = 2, kReduce = 3, kLayer = 4;

RankTrace trace_of(std::uint32_t rank, std::int64_t clock_offset_ns, std::vector<Event> events) {
  return {{.communicator = 1, .clock_offset_ns = clock_offset_ns, .rank = rank, .size = 2},
          1000,
          0,
          {"", "send", "receive", "all_reduce", "fc1.weight"},
          std::move(events)};
}

Event send(std::int64_t begin, std::int64_t end, std::uint32_t at, std::uint32_t peer) {
  return {.begin_ns = begin,
          .end_ns = end,
          .number = 5,
          .what = kSend,
          .layer = kLayer,
          .peer = peer,
          .at = at,
          .message = Message::sent};
}

Event receive(std::int64_t begin, std::int64_t end, std::uint32_t at, std::uint32_t peer) {
  Event event = send(begin, end, at, peer);
  event.what = kReceive;
  event.message = Message::received;
  return event;
}

TEST(Timeline, clocks_that_differ_are_put_on_that_of_rank_0) {
  const std::vector<RankTrace> traces{trace_of(0, 0, {send(10, 20, 0, 1)}),
                                      trace_of(1, 500, {receive(505, 530, 0, 0)})};
  const Timeline timeline = join(traces);
  EXPECT_EQ(timeline.ranks[0].communicators[0].rows[0].spans[0].begin_ns, 1010);
  EXPECT_EQ(timeline.ranks[1].communicators[0].rows[0].spans[0].begin_ns, 1005);
  EXPECT_EQ(timeline.ranks[1].communicators[0].rows[0].spans[0].end_ns, 1030);
}

TEST(Timeline, first_rank_is_missing_and_the_others_still_agree) {
  const std::vector<RankTrace> traces{trace_of(1, 500, {receive(505, 530, 0, 0)})};
  EXPECT_EQ(join(traces).ranks[0].communicators[0].rows[0].spans[0].begin_ns, 1505);
}

TEST(Timeline, messages_of_a_piece_are_joined_in_their_order) {
  const std::vector<RankTrace> traces{
      trace_of(0, 0, {send(10, 20, 0, 1), send(20, 30, 1, 1)}),
      trace_of(1, 0, {receive(5, 40, 0, 0), receive(40, 41, 1, 0)})};
  const Timeline timeline = join(traces);
  EXPECT_EQ(timeline.messages, 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NE(timeline.ranks[0].communicators[0].rows[0].spans[i].message, 0u);
    EXPECT_EQ(timeline.ranks[0].communicators[0].rows[0].spans[i].message,
              timeline.ranks[1].communicators[0].rows[0].spans[i].message);
  }
}

TEST(Timeline, pieces_whose_begin_was_overwritten_are_not_joined) {
  const std::vector<RankTrace> traces{trace_of(0, 0, {send(20, 30, 1, 1)}),
                                      trace_of(1, 0, {receive(5, 40, 0, 0)})};
  EXPECT_EQ(join(traces).messages, 0u);
}

TEST(Timeline, operations_that_overlap_are_in_rows_of_their_own) {
  const auto operation = [](std::int64_t begin, std::int64_t end) {
    return Event{.begin_ns = begin, .end_ns = end, .what = kReduce, .kind = Kind::operation};
  };
  const std::vector<RankTrace> traces{
      trace_of(0, 0, {operation(0, 10), operation(5, 8), operation(9, 12), operation(10, 11)})};
  const Timeline timeline = join(traces);
  const auto& rows = timeline.ranks[0].communicators[0].rows;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].spans.size(), 2u);
  EXPECT_EQ(rows[1].spans.size(), 2u);
  EXPECT_EQ(rows[1].name, "operations 2");
}

TEST(Timeline, steps_that_prepare_tensors_are_above_those_of_pieces) {
  Event event = send(0, 10, 0, 1);
  event.message = Message::none;
  std::vector<Event> events(3, event);
  events[1].number = events[2].number = kNoPiece;  // in lanes of their own, which do not matter
  events[1].lane = 8;
  events[2].lane = 9;
  const Timeline timeline = join(std::vector{trace_of(0, 0, std::move(events))});
  std::vector<std::string> names;
  for (const Row& row : timeline.ranks[0].communicators[0].rows) names.push_back(row.name);
  EXPECT_EQ(names, (std::vector<std::string>{"preparation", "preparation 2", "lane 0"}));
}

TEST(Timeline, spans_that_all_overlap_take_no_time_to_speak_of) {
  constexpr std::int64_t kSpans = 400'000;  // comparing each with each takes a minute
  std::vector<Event> events;
  for (std::int64_t i = 0; i < kSpans; ++i) {
    events.push_back({.begin_ns = i, .end_ns = 2 * kSpans - i, .kind = Kind::operation});
  }
  const auto begin = std::chrono::steady_clock::now();
  const Timeline timeline = join(std::vector{trace_of(0, 0, std::move(events))});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(timeline.ranks[0].communicators[0].rows.size(), static_cast<std::size_t>(kSpans));
}

TEST(Timeline, names_of_ranks_are_in_the_order_of_letters) {
  std::vector<RankTrace> traces{trace_of(2, 0, {}), trace_of(10, 0, {})};
  for (RankTrace& trace : traces) trace.origin.size = 11;
  const Timeline timeline = join(traces);
  EXPECT_EQ(timeline.ranks[0].name, "rank 02");
  EXPECT_EQ(timeline.ranks[1].name, "rank 10");
}

TEST(Timeline, ranks_that_left_nothing_are_named) {
  const auto missing = [](std::uint32_t size, const std::vector<std::uint32_t>& there) {
    std::vector<RankTrace> traces;
    for (const std::uint32_t rank : there) {
      traces.push_back(trace_of(rank, 0, {}));
      traces.back().origin.size = size;
    }
    return join(traces).missing;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(missing(2, {0, 1}), Names());
  EXPECT_EQ(missing(2, {0, 0, 1}), Names());
  EXPECT_EQ(missing(2, {0}), Names{"rank 1"});
  EXPECT_EQ(missing(9, {1, 5, 6}), (Names{"rank 0", "ranks 2 to 4", "ranks 7 to 8"}));
  EXPECT_EQ(missing(UINT32_MAX, {1}), (Names{"rank 0", "ranks 2 to 4294967294"}));
}

TEST(Timeline, communicators_are_not_mixed) {
  std::vector<RankTrace> traces{trace_of(0, 0, {send(10, 20, 0, 1)}),
                                trace_of(1, 0, {receive(5, 30, 0, 0)})};
  traces[1].origin.communicator = 2;
  const Timeline timeline = join(traces);
  EXPECT_EQ(timeline.messages, 0u);
  EXPECT_EQ(timeline.ranks[1].communicators[0].name, "group 2, rank 1 of 2");
  EXPECT_EQ(timeline.missing,
            (std::vector<std::string>{"rank 1 of 2 (group 1)", "rank 0 of 2 (group 2)"}));
}

/// HSDP: ranks 0 and 1 share a model, and so do 2 and 3; 0 and 2 add up, and so do 1 and 3.
TEST(Timeline, a_rank_of_several_communicators_is_one_rank_of_the_job) {
  const std::int64_t members[4][2] = {{0, 1}, {2, 3}, {0, 2}, {1, 3}};
  std::vector<RankTrace> traces;
  for (std::uint64_t group = 0; group < 4; ++group) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      traces.push_back(trace_of(rank, 0, {send(10, 20, 0, 1 - rank)}));
      traces.back().origin.communicator = group;
      const std::int64_t job_rank = members[group][rank];
      if (job_rank != rank) traces.back().origin.job_rank = job_rank;
    }
  }
  std::vector<std::string> names, of_last;
  const Timeline timeline = join(traces);
  for (const RankRows& rank : timeline.ranks) names.push_back(rank.name);
  for (const auto& each : timeline.ranks.back().communicators) of_last.push_back(each.name);
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0", "rank 1", "rank 2", "rank 3"}));
  EXPECT_EQ(of_last, (std::vector<std::string>{"group 2, rank 1 of 2", "group 4, rank 1 of 2"}));
  EXPECT_TRUE(timeline.missing.empty());
}

TEST(Timeline, titles_name_layers_and_what_was_not_done) {
  const RankTrace trace = trace_of(0, 0, {});
  Event event = send(0, 1, 0, 1);
  EXPECT_EQ(title_of(trace, event), "send fc1.weight");
  event.more_layers = 3;
  event.state = State::unfinished;
  EXPECT_EQ(title_of(trace, event), "send fc1.weight and 3 more (unfinished)");
}

}  // namespace
}  // namespace gradwire::trace
