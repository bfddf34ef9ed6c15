// Peers that belong to the job and then misbehave.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "gradwire/error.h"
#include "net/mesh.h"
#include "transport/tcp_connection.h"
#include "transport/transport_kinds.h"
#include "transport/transport_test_party.h"

// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" [[gnu::weak]] std::size_t __sanitizer_get_current_allocated_bytes();

namespace gradwire::test {
namespace {

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

/// Rank 1 of two: connects with rank 0 as it should, and returns its sockets.
std::vector<FileDescriptor> join(
    const Job& job, Purpose purpose, std::uint32_t connections,
    const std::function<FileDescriptor(std::uint32_t, std::size_t)>& call) {
  std::vector<FileDescriptor> sockets;
  for (auto& line : connect_mesh({.identity = {job, purpose, 1},
                    .peers = {0},
                    .listeners = {},
                    .call = call,
                    .deadline = soon(),
                    .connections_per_peer = connections})) {
    sockets.push_back(std::move(line[0].socket));
  }
  return sockets;
}

/// Gives up as the engine does.
class GivesUp final : public Inbox {
 public:
  explicit GivesUp(Router& router) : router_(router) {}
  bool wants(std::uint32_t, Tag) noexcept override { return true; }
  void arrived(const Arrival&) noexcept override {}
  void sent(std::uint64_t) noexcept override {}
  void failed(const Failure& failure) noexcept override {
    fault = failure.fault;
    router_.abort(failure.culprit, "garbage");
  }

  std::optional<Fault> fault;

 private:
  Router& router_;
};

/// Rank 0's router, and the socket at which rank 1 can say what it likes.
class BadPeer : public testing::Test {
 protected:
  void SetUp() override {
    const Job job = Job::random();
    Listener listener = listen_tcp("lo", 0);
    const std::string address = listener.addresses[0];
    std::thread joining([&] {
      liar_ = join(job, Purpose::tcp, 2, [&](std::uint32_t, std::size_t) {
        return connect_tcp_address(address, soon());
      });
    });
    router_ = std::make_unique<Router>(kTcp.connect({.job = job,
                                                     .me = 0,
                                                     .count = 2,
                                                     .peers = {1},
                                                     .addresses = {{}, {}},
                                                     .message_bytes = 1000,
                                                     .deadline = soon()},
                                                    std::move(listener)),
                                       2);
    joining.join();
  }

  void say(std::span<const std::byte> bytes) const {
    ASSERT_EQ(send(liar_[0].get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }

  std::unique_ptr<Router> router_;
  std::vector<FileDescriptor> liar_;  // for messages and for signals
};

TEST_F(BadPeer, garbage_over_tcp_is_answered_with_an_abort) {
  say(std::array<std::byte, 1000>{});
  GivesUp inbox(*router_);
  ASSERT_TRUE(progress_until(*router_, inbox, [&] { return inbox.fault.has_value(); }));
  EXPECT_EQ(inbox.fault, Fault::garbage);
  std::byte answer[sizeof(WireHeader)];
  ASSERT_EQ(recv(liar_[0].get(), answer, sizeof(answer), MSG_DONTWAIT), std::ssize(answer));
  EXPECT_EQ(load<WireHeader>(answer).kind, WireHeader::abort);
  EXPECT_EQ(load<WireHeader>(answer).tag, 1u);
}

TEST_F(BadPeer, a_reason_with_damaged_letters_stays_readable) {
  const std::string reason = "rank\xff 1 \n failed";
  WireHeader header{WireHeader::abort, 0, 1, reason.size()};
  header.check = static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(&header, 1))));
  say(std::as_bytes(std::span(&header, 1)));
  say(std::as_bytes(std::span(reason)));
  Recorder inbox;
  ASSERT_TRUE(progress_until(*router_, inbox, [&] { return !inbox.failures.empty(); }));
  EXPECT_EQ(inbox.failures[0].fault, Fault::refused);
  EXPECT_EQ(inbox.failures[0].reason, "rank? 1 ? failed");
}

/// How often the transport is woken within a moment, and has something to do or not.
int wake_ups(Router& router, Inbox& inbox) {
  int count = 0;
  const Deadline end = Clock::now() + std::chrono::milliseconds(300);
  while (Clock::now() < end && count < 1000) {
    if (router.progress(inbox) || !router.arm()) {
      ++count;
      continue;
    }
    pollfd polled{router.event(), POLLIN, 0};
    count += poll(&polled, 1, milliseconds_until(end)) > 0;
  }
  return count;
}

TEST_F(BadPeer, one_that_breaks_off_while_its_message_has_to_wait_costs_no_time) {
  WireHeader header{WireHeader::message, 0, 7, 0};
  header.check = static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(&header, 1))));
  say(std::as_bytes(std::span(&header, 1)));
  Recorder inbox;
  int asked = 0;
  bool wanted = false;
  inbox.wants_filter = [&](std::uint32_t, Tag) {
    ++asked;
    return wanted;
  };
  ASSERT_TRUE(progress_until(*router_, inbox, [&] { return asked > 0; }));
  const std::vector<std::byte> much(64 << 20);  // more than the system takes at once
  router_->send(1, 1, much, 5);
  router_->progress(inbox);
  ASSERT_TRUE(inbox.tickets.empty());
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(liar_[0].get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  liar_.clear();
  EXPECT_LT(wake_ups(*router_, inbox), 20);
  EXPECT_EQ(inbox.tickets, std::vector<std::uint64_t>{5}) << "its memory is not given back";
  router_->send(1, 2, much, 6);
  EXPECT_LT(wake_ups(*router_, inbox), 20);
  EXPECT_EQ(inbox.tickets.size(), 2u);
  EXPECT_TRUE(inbox.failures.empty()) << "before what it sent";
  wanted = true;
  ASSERT_TRUE(progress_until(*router_, inbox, [&] { return !inbox.failures.empty(); }));
  EXPECT_EQ(inbox.arrivals.size(), 1u);
  EXPECT_EQ(inbox.failures[0].fault, Fault::lost);
}

/// Sanitizers hold back what was freed, so that the process does not shrink: they are asked
/// instead.
std::size_t bytes_in_use() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    return __sanitizer_get_current_allocated_bytes();
  }
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

TEST_F(BadPeer, one_that_asks_a_million_times_and_never_listens_fills_no_memory) {
  WireHeader question{WireHeader::message, 0, 0, 0};
  question.check = static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(&question, 1))));
  const std::vector<WireHeader> thousand(1000, question);
  const auto ask_a_million_times = [&] {
    Recorder inbox;
    std::span<const std::byte> unsaid;
    int said = 0;
    return progress_until(*router_, inbox, [&] {
      if (unsaid.empty() && ++said <= 1000) unsaid = std::as_bytes(std::span(thousand));
      const ssize_t n = send(liar_[1].get(), unsaid.data(), unsaid.size(), MSG_DONTWAIT);
      if (n > 0) unsaid = unsaid.subspan(static_cast<std::size_t>(n));
      return said > 1000;
    });
  };
  const std::size_t before = bytes_in_use();
  ASSERT_TRUE(ask_a_million_times());
  EXPECT_LT(bytes_in_use(), before + (std::size_t{16} << 20));
  router_->abort(0, "the end");  // which goes into the full queue
  ASSERT_TRUE(ask_a_million_times());
  EXPECT_LT(bytes_in_use(), before + (std::size_t{16} << 20));
}

TEST(BadNeighbour, one_that_leaves_before_it_shares_memory_is_named) {
  const Job job = Job::random();
  Listener listener = kShm.listen("", 0);
  const std::string name = listener.addresses[0];
  std::thread leaving([&] {
    join(job, Purpose::shm, 1, [&](std::uint32_t, std::size_t) {
      FileDescriptor caller(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path + 1, name.data(), name.size());
      const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      if (connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        return FileDescriptor();
      }
      return caller;
    });
  });
  try {
    kShm.connect({.job = job,
                  .me = 0,
                  .count = 2,
                  .peers = {1},
                  .addresses = {{name}, {}},
                  .message_bytes = kPartyMessageBytes,
                  .deadline = soon()},
                 std::move(listener));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_failed);
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
  leaving.join();
}

}  // namespace
}  // namespace gradwire::test
