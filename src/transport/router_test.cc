#include "transport/router.h"

#include <gtest/gtest.h>

#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

/// Does what the test says, and keeps what it is told.
class FakeTransport final : public Transport {
 public:
  void send(std::uint32_t, Tag, std::span<const std::byte>, std::uint64_t) noexcept override {
    ++messages;
  }
  void release(const Arrival&) noexcept override {}
  bool progress(Receiver& receiver) noexcept override {
    if (report) report(receiver);
    return false;
  }
  int event() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void signal(std::uint32_t, Signal signal) noexcept override { signals.push_back(signal); }
  std::size_t queued_signals(std::uint32_t) const noexcept override { return signals.size(); }
  void abort(std::uint32_t, std::string_view reason, Receiver& receiver) noexcept override {
    aborts.emplace_back(reason);
    receiver.sent(7);
  }

  std::function<void(Receiver&)> report;
  int messages = 0;
  std::vector<Signal> signals;
  std::vector<std::string> aborts;
};

class OneRouter : public testing::Test {
 protected:
  FakeTransport* transport_ = new FakeTransport;  // the router's
  Router router_{std::unique_ptr<Transport>(transport_), 4};
  Recorder inbox_;
};

TEST_F(OneRouter, an_abort_of_a_peer_names_a_rank_that_there_is_in_letters_that_can_be_shown) {
  transport_->report = [](Receiver& receiver) {
    receiver.failed({Fault::refused, 1, 1'000'000, "rank\xff 9 \n failed"});
  };
  router_.progress(inbox_);
  ASSERT_EQ(inbox_.failures.size(), 1u);
  EXPECT_EQ(inbox_.failures[0].culprit, 3u);
  EXPECT_EQ(inbox_.failures[0].reason, "rank? 9 ? failed");
}

TEST_F(OneRouter, a_message_to_a_peer_that_failed_counts_as_sent) {
  transport_->report = [](Receiver& receiver) { receiver.failed({Fault::lost, 1, 1, ""}); };
  router_.progress(inbox_);
  transport_->report = nullptr;
  router_.send(1, 0, {}, 5);
  router_.send(2, 0, {}, 6);
  router_.ask(1);
  EXPECT_FALSE(router_.arm()) << "there is something to report";
  EXPECT_TRUE(router_.progress(inbox_));
  EXPECT_EQ(inbox_.tickets, std::vector<std::uint64_t>{5});
  EXPECT_EQ(transport_->messages, 1);
  EXPECT_TRUE(transport_->signals.empty());
  EXPECT_TRUE(router_.arm());
}

TEST_F(OneRouter, a_peer_that_asks_and_never_listens_is_answered_so_often_only) {
  transport_->report = [](Receiver& receiver) {
    for (int i = 0; i < 1000; ++i) receiver.signalled(1, {Signal::Kind::question});
  };
  inbox_.waiting = 2;
  router_.progress(inbox_);
  EXPECT_EQ(inbox_.questions, 1000);
  ASSERT_EQ(transport_->signals.size(), 64u);
  EXPECT_EQ(transport_->signals[0].kind, Signal::Kind::answer);
  EXPECT_EQ(transport_->signals[0].rank_plus_one, 3u);
}

TEST_F(OneRouter, aborts_once_and_with_a_reason_that_fits) {
  router_.abort(0, std::string(kMaxReason + 1, 'x'));
  router_.abort(0, "again");
  EXPECT_EQ(transport_->aborts, std::vector<std::string>{std::string(kMaxReason, 'x')});
  EXPECT_TRUE(inbox_.tickets.empty());
  router_.progress(inbox_);
  EXPECT_EQ(inbox_.tickets, std::vector<std::uint64_t>{7}) << "what left meanwhile";
}

}  // namespace
}  // namespace gradwire::test
