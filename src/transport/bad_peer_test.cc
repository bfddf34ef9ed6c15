// Peers that belong to the job and then misbehave.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/checksum.h"
#include "gradwire/error.h"
#include "transport/meeting.h"
#include "transport/shm.h"
#include "transport/tcp.h"
#include "transport/tcp_connection.h"
#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

/// Rank 1 of two: connects with rank 0 as it should, and returns its sockets.
std::vector<FileDescriptor> join(
    const Job& job, Purpose purpose, std::uint32_t lines,
    const std::function<FileDescriptor(std::uint32_t, std::size_t)>& call) {
  std::vector<FileDescriptor> sockets;
  for (auto& line : meet({.side = {job, purpose, 1},
                    .peers = {0},
                    .listener = -1,
                    .call = call,
                    .deadline = soon(),
                    .lines = lines})) {
    sockets.push_back(std::move(line[0].socket));
  }
  return sockets;
}

/// Gives up as the engine does.
class GivesUp final : public Inbox {
 public:
  explicit GivesUp(Transport& transport) : transport_(transport) {}
  bool wants(std::uint32_t, Tag) noexcept override { return true; }
  void arrived(const Arrival&) noexcept override {}
  void sent(std::uint64_t) noexcept override {}
  void failed(const Failure& failure) noexcept override {
    fault = failure.fault;
    transport_.abort(failure.culprit, "garbage");
  }

  std::optional<Fault> fault;

 private:
  Transport& transport_;
};

/// Rank 0's transport, and the socket at which rank 1 can say what it likes.
class BadPeer : public testing::Test {
 protected:
  void SetUp() override {
    const Job job = Job::random();
    TcpListener listener = listen_tcp("lo", 0);
    const std::string address = listener.addresses[0];
    std::thread joining([&] {
      liar_ = join(job, Purpose::tcp, 2, [&](std::uint32_t, std::size_t) {
        return connect_tcp_address(address, soon());
      });
    });
    transport_ = connect_tcp({.job = job,
                              .me = 0,
                              .count = 2,
                              .peers = {1},
                              .addresses = {{}, {}},
                              .max_message_bytes = 1000,
                              .deadline = soon()},
                             std::move(listener));
    joining.join();
  }

  void say(std::span<const std::byte> bytes) const {
    ASSERT_EQ(send(liar_[0].get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }

  std::unique_ptr<Transport> transport_;
  std::vector<FileDescriptor> liar_;  // for messages and for talk
};

TEST_F(BadPeer, garbage_over_tcp_is_answered_with_an_abort) {
  say(std::array<std::byte, 1000>{});
  GivesUp inbox(*transport_);
  ASSERT_TRUE(progress_until(*transport_, inbox, [&] { return inbox.fault.has_value(); }));
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
  ASSERT_TRUE(progress_until(*transport_, inbox, [&] { return !inbox.failures.empty(); }));
  EXPECT_EQ(inbox.failures[0].fault, Fault::refused);
  EXPECT_EQ(inbox.failures[0].reason, "rank? 1 ? failed");
}

TEST(BadNeighbour, one_that_leaves_before_it_shares_memory_is_named) {
  const Job job = Job::random();
  std::thread leaving([&] {
    join(job, Purpose::shm, 1, [&](std::uint32_t rank, std::size_t) {
      FileDescriptor caller(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const std::string name = "gradwire-" + job.id_text() + "-" + std::to_string(rank);
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
    connect_shm({.job = job,
                 .me = 0,
                 .count = 2,
                 .peers = {1},
                 .message_bytes = kPartyMessageBytes,
                 .deadline = soon()});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_failed);
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
  leaving.join();
}

}  // namespace
}  // namespace gradwire::test
