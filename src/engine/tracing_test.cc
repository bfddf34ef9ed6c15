// What a trace of several ranks holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "engine/clock_offset.h"
#include "engine/engine_test_ranks.h"
#include "trace/timeline.h"
#include "trace/trace_test_folder.h"
#include "transport/inproc.h"

namespace gradwire {
namespace {

using trace::Event;
using trace::Kind;
using trace::Message;

constexpr std::uint32_t kRanks = 4;

/// Two tensors in one operation, cut into several pieces, then a third alone.
void exchange(Communicator& me) {
  Numbers first = integers(20'000, me.rank());
  Numbers second = integers(30'000, me.rank());
  Numbers third = integers(5'000, me.rank());
  const std::vector<Tensor> both{{"first", {first.data(), first.size()}},
                                 {"second", {second.data(), second.size()}}};
  const std::vector<Tensor> alone{
      {"third", {third.data(), third.size()}, Way::parse("grid:step=0.5")}};
  Work work = me.all_reduce(both, {.step = 7});
  me.all_reduce(alone, {.step = 8}).wait();
  work.wait();
  me.barrier().wait();
}

std::vector<trace::RankTrace> traces_of(const ConnectOptions& options) {
  {
    RanksHere ranks = Communicator::in_process(kRanks, options);
    on_all_ranks(ranks, exchange);
  }
  return trace::read_traces(options.trace).traces;
}

class Tracing : public testing::TestWithParam<std::string> {
 protected:
  const trace::TestFolder folder_;
  const std::vector<trace::RankTrace> traces_ =
      traces_of({.tuning = {.algorithm = GetParam(), .threads = 3, .piece_elements = 16'384},
                 .trace = folder_.path});
};

TEST_P(Tracing, every_send_is_joined_to_its_receive_which_ends_later) {
  const trace::Timeline timeline = trace::join(traces_);
  std::map<std::uint64_t, std::vector<const trace::Span*>> ends;
  std::size_t messages = 0;
  for (const trace::RankRows& rank : timeline.ranks) {
    for (const trace::Row& row : rank.communicators.front().rows) {
      for (const trace::Span& span : row.spans) {
        if (span.event->message == Message::none) continue;
        ++messages;
        ASSERT_NE(span.message, 0u);
        ends[span.message].push_back(&span);
      }
    }
  }
  EXPECT_GT(messages, 0u);
  EXPECT_EQ(2 * timeline.messages, messages);
  for (const auto& [message, spans] : ends) {
    ASSERT_EQ(spans.size(), 2u);
    const bool in_order = spans[0]->event->message == Message::sent;
    const trace::Span& sent = *spans[in_order ? 0 : 1];
    const trace::Span& received = *spans[in_order ? 1 : 0];
    EXPECT_EQ(received.event->message, Message::received);
    EXPECT_EQ(sent.event->bytes, received.event->bytes);
    EXPECT_LE(sent.begin_ns, received.end_ns);
  }
}

TEST_P(Tracing, spans_of_a_lane_do_not_overlap) {
  for (const trace::RankRows& rank : trace::join(traces_).ranks) {
    std::set<std::string> names;
    for (const trace::Row& row : rank.communicators.front().rows) {
      // What overlapped would have another row.
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
    }
  }
}

TEST_P(Tracing, steps_and_operations_name_their_layers) {
  for (const trace::RankTrace& trace : traces_) {
    std::set<std::string> steps, operations;
    for (const Event& event : trace.events) {
      (event.kind == Kind::step ? steps : operations).insert(trace::title_of(trace, event));
    }
    EXPECT_TRUE(operations.contains("all_reduce first and 1 more"));
    EXPECT_TRUE(operations.contains("all_reduce third"));
    EXPECT_TRUE(operations.contains("barrier"));
    EXPECT_TRUE(steps.contains("encode third"));
    EXPECT_TRUE(steps.contains("receive first and 1 more"));  // the second piece has both
    EXPECT_TRUE(steps.contains("receive second"));
  }
}

TEST_P(Tracing, steps_lie_within_the_operations) {
  for (const trace::RankTrace& trace : traces_) {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    for (const Event& event : trace.events) {
      if (event.kind != Kind::operation) continue;
      begin = std::min(begin, event.begin_ns);
      end = std::max(end, event.end_ns);
    }
    for (const Event& event : trace.events) {
      EXPECT_GE(event.begin_ns, begin);
      EXPECT_LE(event.end_ns, end);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Tracing, testing::Values("sra", "ring", "tree", "allgather"),
                         [](const auto& tested) { return tested.param; });

TEST(TracingFailure, ranks_write_what_they_waited_for_and_the_error_names_the_file) {
  const trace::TestFolder folder;
  auto ranks = Communicator::in_process(
      2, {.timeout = std::chrono::milliseconds(300), .trace = folder.path});
  Numbers x = integers(100, 0);
  const Tensor tensor{"alone", {x.data(), x.size()}};
  try {
    ranks[0]->all_reduce({&tensor, 1}).wait();  // rank 1 does not make this call
    FAIL();
  } catch (const Error& error) {
    const std::string path = ranks[0]->recorder()->path();
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    const trace::RankTrace trace = trace::read_trace(path);  // it is there already
    std::set<std::string> titles;
    for (const Event& event : trace.events) titles.insert(trace::title_of(trace, event));
    EXPECT_TRUE(titles.contains("receive alone (unfinished)"));
    EXPECT_TRUE(titles.contains("all_reduce alone (unfinished)"));
  }
}

TEST(TracingFailure, slow_disk_does_not_hold_the_error_back) {
  const trace::TestFolder folder;
  auto ranks = Communicator::in_process(
      2, {.timeout = std::chrono::milliseconds(300), .trace = folder.path});
  const std::string path = ranks[0]->recorder()->path();
  const trace::SlowDisk disk(path);
  Numbers x = integers(100, 0);
  const Tensor tensor{"alone", {x.data(), x.size()}};
  Work work = ranks[0]->all_reduce({&tensor, 1});
  std::string heard;
  try {
    work.wait_for(std::chrono::seconds(20));  // of which it needs one
  } catch (const Error& error) {
    heard = error.what();
  }
  EXPECT_NE(heard.find("is being written to " + path), std::string::npos) << heard;
  disk.write_all();
  ranks.clear();
  EXPECT_FALSE(trace::read_trace(path).events.empty());
}

/// Ranks that meet in a store, each in a thread; what became of connecting, and of `exchange`.
std::vector<std::string> connect_and_exchange(const std::string& transport,
                                              const std::vector<std::string>& trace_of_rank) {
  const trace::TestFolder store;
  const auto size = static_cast<std::uint32_t>(trace_of_rank.size());
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto me =
            Communicator::connect({.rank = rank,
                                   .size = size,
                                   .store = "file:" + store.path,
                                   .network = {.transport = transport, .interface = "lo"},
                                   .trace = trace_of_rank[rank]});
        exchange(*me);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class TracedTransport : public testing::TestWithParam<std::string> {};

TEST_P(TracedTransport, ranks_that_connect_agree_on_number_and_clock) {
  const trace::TestFolder folder;
  const auto errors =
      connect_and_exchange(GetParam(), std::vector<std::string>(kRanks, folder.path));
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  const auto traces = trace::read_traces(folder.path).traces;
  ASSERT_EQ(traces.size(), kRanks);
  for (const trace::RankTrace& trace : traces) {
    EXPECT_EQ(trace.origin.communicator, traces[0].origin.communicator);
    EXPECT_EQ(trace.origin.clock_offset_ns, 0);  // it is the same clock
  }
  EXPECT_GT(trace::join(traces).messages, 0u);
}

INSTANTIATE_TEST_SUITE_P(Transports, TracedTransport, testing::Values("shm", "tcp"),
                         [](const auto& tested) { return tested.param; });

TEST(TracingAgreement, rank_that_leaves_when_it_was_measured_does_not_disturb_others) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto routers = make_inproc(3, 4096);
  std::vector<engine::Agreement> agreed(3);
  std::vector<std::string> errors(3);
  const auto agree = [&](std::uint32_t rank) {
    try {
      agreed[rank] = engine::agree_on_origin(*routers[rank], rank, 3, deadline);
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  };
  std::thread asks([&] { agree(0); });
  agree(1);
  routers[1].reset();
  agree(2);  // rank 0 waits for it, and has heard that rank 1 is gone
  asks.join();
  EXPECT_EQ(errors, std::vector<std::string>(3));
  for (const std::uint32_t rank : {0u, 2u}) {
    EXPECT_EQ(agreed[rank].origin.communicator, agreed[1].origin.communicator);
    EXPECT_TRUE(agreed[rank].lost.contains(1));
  }
}

TEST(TracingAgreement, rank_that_leaves_before_is_named) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto routers = make_inproc(2, 4096);
  routers[1].reset();
  try {
    engine::agree_on_origin(*routers[0], 0, 2, deadline);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_failed);
    EXPECT_NE(std::string(error.what()).find("rank 1 failed"), std::string::npos) << error.what();
  }
}

/// Whatever rank 1's leaving is noticed by, operations that need it fail at once and name it.
TEST_P(TracedTransport, rank_that_leaves_at_once_is_missed_only_by_operations) {
  const trace::TestFolder store, folder;
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto me =
            Communicator::connect({.rank = rank,
                                   .size = 3,
                                   .store = "file:" + store.path,
                                   .network = {.transport = GetParam(), .interface = "lo"},
                                   .trace = folder.path});
        if (rank != 1) exchange(*me);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[1], "");
  for (const std::uint32_t rank : {0u, 2u}) {
    EXPECT_NE(errors[rank].find("rank 1 failed"), std::string::npos) << errors[rank];
  }
}

TEST(TracingMismatch, trace_on_some_ranks_only_is_refused_by_all) {
  const trace::TestFolder folder;
  for (const std::string& error : connect_and_exchange("tcp", {folder.path, ""})) {
    EXPECT_NE(error.find("a trace to all or to none"), std::string::npos) << error;
  }
}

TEST(TracingLanes, traces_of_as_many_as_there_can_be_are_read) {
  const trace::TestFolder folder;
  const auto traces = traces_of({.tuning = {.lanes = 64, .threads = 64}, .trace = folder.path});
  EXPECT_EQ(traces.size(), kRanks);
}

TEST(TracingOff, nothing_is_recorded) {
  auto ranks = Communicator::in_process(1);
  EXPECT_EQ(ranks[0]->recorder(), nullptr);
}

TEST(Tracing, steps_tell_what_they_worked_on) {
  constexpr std::size_t kElements = 300'000;  // taken up in several parts
  const trace::TestFolder folder;
  {
    auto ranks = Communicator::in_process(2, {.trace = folder.path});
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers a = integers(100, me.rank()), b = a, c = a, large = integers(kElements, me.rank());
      const std::vector<Tensor> tensors{{"a", {a.data(), 100}},
                                        {"b", {b.data(), 100}, Way::parse("sign+route:ring")},
                                        {"c", {c.data(), 100}},
                                        {"large",
                                         {large.data(), kElements},
                                         Way::parse("topk:density=0.01+feedback+route:tree")}};
      me.all_reduce(tensors).wait();
    });
  }
  for (const trace::RankTrace& each : trace::read_traces(folder.path).traces) {
    std::map<std::string, std::uint64_t> bytes;  // of preparations
    for (const Event& event : each.events) {
      bytes[each.texts[event.what]] += event.bytes;
      const bool exact = each.texts[event.what] == "encode" && each.texts[event.layer] == "a";
      EXPECT_TRUE(!exact || event.more_layers == 1);  // c: b goes by another route
    }
    for (const char* op : {"measure", "take"}) EXPECT_EQ(bytes[op], 4 * kElements) << op;
  }
}

}  // namespace
}  // namespace gradwire
