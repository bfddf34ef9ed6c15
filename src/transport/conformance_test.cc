// What every transport promises, written once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>

#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

class Conformance : public testing::TestWithParam<Party> {
 protected:
  static void run(std::uint32_t ranks, const Body& body) { GetParam().run(ranks, body); }

  /// Memory to send from, wherever the transport wants it.
  static std::span<std::byte> memory(Router& router, std::vector<std::byte>& own) {
    const auto shared = router.send_memory();
    if (!shared.empty()) return shared;
    own.resize(kPartyMessageBytes);
    return own;
  }
  static void fill(std::span<std::byte> bytes, std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(seed * 131 + i * 7 + i / 251);
    }
  }
  static bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
    std::vector<std::byte> expected(bytes.size());
    fill(expected, seed);
    return std::equal(bytes.begin(), bytes.end(), expected.begin());
  }
};

TEST_P(Conformance, messages_of_all_sizes_arrive_whole_and_in_order) {
  constexpr std::size_t kSizes[] = {0, 1, 7, 64, 4095, 4096, 65'537, 1'000'003, 0, 12};
  run(3, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    const auto room = memory(router, own);
    std::size_t at = 0;
    std::uint64_t ticket = 0;
    for (const std::size_t size : kSizes) {
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == me) continue;
        const auto message = room.subspan(at, size);
        fill(message, me * 100 + peer * 10 + size);
        router.send(peer, ticket / 2, message, ticket);
        at += size;
        ++ticket;
      }
    }
    const std::size_t expected = 2 * std::size(kSizes);
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.arrivals.size() == expected; }))
        << inbox.arrivals.size();
    std::size_t next[3] = {};
    for (const Arrival& arrival : inbox.arrivals) {
      const std::size_t index = next[arrival.peer]++;
      EXPECT_EQ(arrival.tag, index);
      ASSERT_EQ(arrival.bytes.size(), kSizes[index]);
      EXPECT_TRUE(holds(arrival.bytes, arrival.peer * 100 + me * 10 + kSizes[index]));
      router.release(arrival);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.tickets.size() == expected; }));
    std::sort(inbox.tickets.begin(), inbox.tickets.end());
    for (std::size_t i = 0; i < expected; ++i) EXPECT_EQ(inbox.tickets[i], i);
    EXPECT_TRUE(inbox.failures.empty());
  });
}

TEST_P(Conformance, one_message_to_many_peers_is_read_by_all) {
  run(4, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    const auto message = memory(router, own).first(100'000);
    fill(message, me);
    for (std::uint32_t peer = 0; peer < 4; ++peer) {
      if (peer != me) router.send(peer, 9, message, peer);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.arrivals.size() == 3; }));
    for (const Arrival& arrival : inbox.arrivals) {
      EXPECT_TRUE(holds(arrival.bytes, arrival.peer));
      router.release(arrival);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.tickets.size() == 3; }));
  });
}

TEST_P(Conformance, thousands_of_small_messages_keep_their_order) {
  constexpr std::uint64_t kCount = 5000;
  run(2, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    const auto room = memory(router, own).first(kCount * 8);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      std::memcpy(room.data() + i * 8, &i, 8);
      router.send(1 - me, i, room.subspan(i * 8, 8), i);
    }
    std::uint64_t next = 0;
    ASSERT_TRUE(progress_until(router, inbox,
                               [&] {
                                 for (const Arrival& arrival : inbox.arrivals) {
                                   std::uint64_t value = 0;
                                   std::memcpy(&value, arrival.bytes.data(), 8);
                                   EXPECT_EQ(value, next);
                                   EXPECT_EQ(arrival.tag, next++);
                                   router.release(arrival);
                                 }
                                 inbox.arrivals.clear();
                                 return next == kCount && inbox.tickets.size() == kCount;
                               }))
        << next << " arrived, " << inbox.tickets.size() << " sent";
  });
}

TEST_P(Conformance, releases_in_any_order_free_every_message) {
  run(2, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    std::mt19937 random(me);
    const auto room = memory(router, own);
    std::vector<Arrival> held;
    std::size_t arrived = 0;
    for (std::uint64_t i = 0; i < 300; ++i) router.send(1 - me, i, room.subspan(i * 64, 64), i);
    ASSERT_TRUE(progress_until(router, inbox, [&] {
      arrived += inbox.arrivals.size();
      held.insert(held.end(), inbox.arrivals.begin(), inbox.arrivals.end());
      inbox.arrivals.clear();
      if (held.size() < 20 && arrived < 300) return false;
      std::shuffle(held.begin(), held.end(), random);
      for (const Arrival& arrival : held) router.release(arrival);
      held.clear();
      return arrived == 300 && inbox.tickets.size() == 300;
    }));
  });
}

TEST_P(Conformance, a_message_that_is_not_wanted_waits_and_loses_nothing) {
  run(2, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    const auto room = memory(router, own);
    Tag limit = 3;
    inbox.wants_filter = [&](std::uint32_t, Tag tag) { return tag < limit; };
    for (std::uint64_t i = 0; i < 10; ++i) {
      fill(room.subspan(i * 100'000, 100'000), me + i);
      router.send(1 - me, i, room.subspan(i * 100'000, 100'000), i);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.arrivals.size() == 3; }));
    for (int i = 0; i < 50; ++i) router.progress(inbox);
    EXPECT_EQ(inbox.arrivals.size(), 3u);
    limit = 10;
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.arrivals.size() == 10; }));
    for (const Arrival& arrival : inbox.arrivals) {
      EXPECT_TRUE(holds(arrival.bytes, 1 - me + arrival.tag));
      router.release(arrival);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.tickets.size() == 10; }));
  });
}

TEST_P(Conformance, a_question_goes_past_messages_that_are_not_wanted) {
  constexpr std::size_t kCount = 16;
  constexpr std::size_t kBytes = kPartyMessageBytes / kCount;
  run(2, [&](std::uint32_t me, std::unique_ptr<Router>& router) {
    std::vector<std::byte> own;
    Recorder inbox;
    if (me == 0) {
      const auto room = memory(*router, own);
      for (std::size_t i = 0; i < kCount; ++i) {
        router->send(1, i, room.subspan(i * kBytes, kBytes), i);
      }
      for (int round = 0; round < 2; ++round) {
        router->ask(1);
        ASSERT_TRUE(progress_until(*router, inbox, [&] { return !inbox.answers.empty(); }));
        EXPECT_EQ(inbox.answers[0].first, 1u);
        EXPECT_EQ(inbox.answers[0].second,
                  round == 0 ? std::nullopt : std::optional(std::uint32_t{7}));
        inbox.answers.clear();
      }
      ASSERT_TRUE(progress_until(*router, inbox, [&] { return inbox.tickets.size() == kCount; }));
      return;
    }
    inbox.wants_filter = [](std::uint32_t, Tag) { return false; };
    ASSERT_TRUE(progress_until(*router, inbox, [&] { return inbox.questions == 1; }));
    inbox.waiting = 7;
    ASSERT_TRUE(progress_until(*router, inbox, [&] { return inbox.questions == 2; }));
    EXPECT_TRUE(inbox.arrivals.empty());
    inbox.wants_filter = nullptr;
    ASSERT_TRUE(progress_until(*router, inbox, [&] { return inbox.arrivals.size() == kCount; }));
    for (const Arrival& arrival : inbox.arrivals) router->release(arrival);
    for (int i = 0; i < 100; ++i) router->progress(inbox);
  });
}

TEST_P(Conformance, peer_leaves_after_its_last_message) {
  run(3, [&](std::uint32_t me, std::unique_ptr<Router>& router) {
    std::vector<std::byte> own;
    Recorder inbox;
    if (me < 2) {
      router->send(2, 5, memory(*router, own).first(1000), 0);
      ASSERT_TRUE(progress_until(*router, inbox, [&] { return !inbox.tickets.empty(); }));
    }
    if (me == 1) {
      router.reset();
      return;
    }
    const std::size_t expected = me == 2 ? 2 : 0;
    std::size_t arrived = 0;
    ASSERT_TRUE(progress_until(*router, inbox, [&] {
      for (; arrived < inbox.arrivals.size(); ++arrived) {
        router->release(inbox.arrivals[arrived]);
      }
      return arrived == expected && !inbox.failures.empty();
    }));
    EXPECT_EQ(inbox.failures[0].fault, Fault::lost);
    EXPECT_EQ(inbox.failures[0].culprit, 1u);
    EXPECT_EQ(inbox.failures.size(), 1u);
  });
}

TEST_P(Conformance, an_abort_reaches_all_with_culprit_and_reason) {
  const std::string reason =
      "rank 3 did not answer" + std::string(kMaxReason - 30, '.') + " the end";
  run(4, [&](std::uint32_t me, std::unique_ptr<Router>& router) {
    if (me == 1) {
      router->abort(3, reason);
      return;
    }
    Recorder inbox;
    ASSERT_TRUE(progress_until(*router, inbox, [&] { return !inbox.failures.empty(); }));
    EXPECT_EQ(inbox.failures[0].fault, Fault::refused);
    EXPECT_EQ(inbox.failures[0].peer, 1u);
    EXPECT_EQ(inbox.failures[0].culprit, 3u);
    EXPECT_EQ(inbox.failures[0].reason, reason);
  });
}

TEST_P(Conformance, ping_pong_sleeps_and_wakes) {
  run(2, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own;
    Recorder inbox;
    const auto message = memory(router, own).first(8);
    for (Tag round = 0; round < 2000; ++round) {
      if (me == 0) router.send(1, round, message, round);
      ASSERT_TRUE(progress_until(router, inbox, [&] { return !inbox.arrivals.empty(); }));
      EXPECT_EQ(inbox.arrivals[0].tag, round);
      router.release(inbox.arrivals[0]);
      inbox.arrivals.clear();
      if (me == 1) router.send(0, round, message, round);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.tickets.size() == 2000; }));
  });
}

INSTANTIATE_TEST_SUITE_P(Every, Conformance, testing::ValuesIn(parties()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace gradwire::test
