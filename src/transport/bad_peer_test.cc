// Peers that belong to the job and then misbehave.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "gradwire/error.h"
#include "transport/handshake.h"
#include "transport/shm.h"
#include "transport/tcp.h"
#include "transport/tcp_connection.h"
#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

/// Rank 1 of two: connects with rank 0 as it should, and returns its socket.
FileDescriptor join(const Job& job, Purpose purpose,
                    const std::function<FileDescriptor(std::uint32_t)>& call) {
  return std::move(meet({.job = job,
                         .purpose = purpose,
                         .me = 1,
                         .peers = {0},
                         .listener = -1,
                         .call = call,
                         .deadline = soon()})[0]);
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

TEST(BadPeer, garbage_over_tcp_is_answered_with_an_abort) {
  const Job job = Job::random();
  TcpListener listener = listen_tcp("lo", 0);
  const std::string address = listener.addresses[0];
  FileDescriptor liar;
  std::thread joining([&] {
    liar = join(job, Purpose::tcp,
                [&](std::uint32_t) { return connect_tcp_address(address, soon()); });
  });
  const auto transport = connect_tcp({.job = job,
                                      .me = 0,
                                      .count = 2,
                                      .peers = {1},
                                      .addresses = {{}, {}},
                                      .max_message_bytes = 1000,
                                      .deadline = soon()},
                                     std::move(listener));
  joining.join();
  const std::byte garbage[1000] = {};
  ASSERT_EQ(send(liar.get(), garbage, sizeof(garbage), 0), static_cast<ssize_t>(sizeof(garbage)));
  GivesUp inbox(*transport);
  ASSERT_TRUE(progress_until(*transport, inbox, [&] { return inbox.fault.has_value(); }));
  EXPECT_EQ(inbox.fault, Fault::garbage);
  std::byte answer[sizeof(WireHeader)];
  ASSERT_EQ(recv(liar.get(), answer, sizeof(answer), MSG_DONTWAIT),
            static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(load<WireHeader>(answer).kind, WireHeader::abort);
  EXPECT_EQ(load<WireHeader>(answer).tag, 1u);
}

TEST(BadPeer, one_that_leaves_before_it_shares_memory_is_named) {
  const Job job = Job::random();
  std::thread leaving([&] {
    join(job, Purpose::shm, [&](std::uint32_t rank) {
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
