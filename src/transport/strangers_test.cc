// Strangers at the door while ranks connect: the job goes on, and its messages are right.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <future>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "gradwire/error.h"
#include "transport/transport_kinds.h"
#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr std::uint32_t kLate = kRanks - 1;  // comes when the strangers are there

Deadline in_seconds(int seconds) { return Clock::now() + std::chrono::seconds(seconds); }

std::vector<std::uint32_t> peers_of(std::uint32_t me, std::uint32_t count) {
  std::vector<std::uint32_t> peers;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    if (rank != me) peers.push_back(rank);
  }
  return peers;
}

/// A job, and how to knock at the door of its rank 0.
class Besieged {
 public:
  virtual ~Besieged() = default;
  virtual Purpose purpose() const = 0;
  virtual std::unique_ptr<Router> connect(std::uint32_t me) = 0;
  virtual FileDescriptor try_knock() const = 0;

  /// Waits until rank 0 listens.
  FileDescriptor knock() const {
    for (const Deadline deadline = in_seconds(10); Clock::now() < deadline;) {
      if (FileDescriptor socket = try_knock()) return socket;
      poll(nullptr, 0, 1);
    }
    return {};
  }
  Identity identity(std::uint32_t rank) const { return {job_, purpose(), rank}; }

 protected:
  Job job_ = Job::random();
};

class BesiegedTcp final : public Besieged {
 public:
  explicit BesiegedTcp(Tls tls) : tls_(std::move(tls)) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      listeners_.push_back(listen_tcp("lo", 0));
      addresses_.push_back(listeners_.back().addresses);
    }
  }
  Purpose purpose() const override { return Purpose::tcp; }
  std::unique_ptr<Router> connect(std::uint32_t me) override {
    return std::make_unique<Router>(kTcp.connect({.job = job_,
                                                  .me = me,
                                                  .count = kRanks,
                                                  .peers = peers_of(me, kRanks),
                                                  .addresses = addresses_,
                                                  .message_bytes = kPartyMessageBytes,
                                                  .deadline = in_seconds(20),
                                                  .tls = tls_},
                                                 std::move(listeners_[me])),
                                    kRanks);
  }
  FileDescriptor try_knock() const override {
    return connect_tcp_address(addresses_[0][0], in_seconds(20));
  }

 private:
  Tls tls_;
  std::vector<Listener> listeners_;
  std::vector<std::vector<std::string>> addresses_;
};

class BesiegedShm final : public Besieged {
 public:
  BesiegedShm() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      listeners_.push_back(kShm.listen("", 0));
      names_.push_back(listeners_.back().addresses);
    }
  }
  Purpose purpose() const override { return Purpose::shm; }
  std::unique_ptr<Router> connect(std::uint32_t me) override {
    return std::make_unique<Router>(kShm.connect({.job = job_,
                                                  .me = me,
                                                  .count = kRanks,
                                                  .peers = peers_of(me, kRanks),
                                                  .addresses = names_,
                                                  .message_bytes = kPartyMessageBytes,
                                                  .deadline = in_seconds(20)},
                                                 std::move(listeners_[me])),
                                    kRanks);
  }
  FileDescriptor try_knock() const override {
    FileDescriptor caller(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const std::string& name = names_[0][0];  // as `ss -xl` shows it
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const bool connected =
        ::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
    return connected ? std::move(caller) : FileDescriptor();
  }

 private:
  std::vector<Listener> listeners_;
  std::vector<std::vector<std::string>> names_;
};

/// Every rank sends to every other; all of it arrives as it was.
void expect_messages_cross(std::vector<std::unique_ptr<Router>>& routers) {
  run_in_threads(routers, [&](std::uint32_t me, std::unique_ptr<Router>& own_end) {
    Router& router = *own_end;
    std::vector<std::byte> own(kPartyMessageBytes);
    const auto shared = router.send_memory();
    const auto message = (shared.empty() ? std::span(own) : shared).first(300'000);
    std::fill(message.begin(), message.end(), static_cast<std::byte>(me + 1));
    Recorder inbox;
    for (const std::uint32_t peer : peers_of(me, kRanks)) router.send(peer, 1, message, peer);
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.arrivals.size() == kRanks - 1; }));
    for (const Arrival& arrival : inbox.arrivals) {
      const std::vector<std::byte> expected(300'000, static_cast<std::byte>(arrival.peer + 1));
      EXPECT_TRUE(
          std::equal(arrival.bytes.begin(), arrival.bytes.end(), expected.begin(), expected.end()));
      router.release(arrival);
    }
    ASSERT_TRUE(progress_until(router, inbox, [&] { return inbox.tickets.size() == kRanks - 1; }));
  });
}

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Besieged>()> make;
};

class Strangers : public testing::TestWithParam<Kind> {
 protected:
  using Crowd = std::vector<FileDescriptor>;

  /// Ranks 0 and 1 come, then the strangers, who stay, then rank 2.
  void expect_job_survives(const std::function<Crowd(const Besieged&)>& attack) {
    const auto connect = [&](std::uint32_t me) {
      return std::async(std::launch::async, [&, me] { return job_->connect(me); });
    };
    std::vector<std::future<std::unique_ptr<Router>>> connecting;
    for (std::uint32_t rank = 0; rank < kLate; ++rank) connecting.push_back(connect(rank));
    const Crowd expected_callers = attack(*job_);
    connecting.push_back(connect(kLate));
    std::vector<std::unique_ptr<Router>> routers;
    for (auto& each : connecting) routers.push_back(each.get());
    EXPECT_FALSE(job_->try_knock()) << "somebody listens though all have come";
    expect_messages_cross(routers);
  }

  std::unique_ptr<Besieged> job_ = GetParam().make();
};

/// The first message of a caller, as a stranger who knows the job's id can make it.
Hello hello_of(const Identity& identity) {
  int ends[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  const FileDescriptor caller(ends[0]);
  const FileDescriptor answerer(ends[1]);
  shutdown(answerer.get(), SHUT_WR);
  shake_hands(identity, 0, caller.get(), in_seconds(5));
  Hello hello;
  EXPECT_EQ(recv(answerer.get(), &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
  return hello;
}

/// Whether the other end hangs up (having read all or not) within 5 s, whatever it says before.
bool is_hung_up(int socket) {
  for (const Deadline deadline = in_seconds(5); Clock::now() < deadline;) {
    pollfd polled{socket, POLLIN, 0};
    if (poll(&polled, 1, 100) <= 0) continue;
    char bytes[256];
    if (recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) return true;
  }
  return false;
}

/// Sends as much of it as the other end takes; false when it hung up.
bool pour(int socket, std::size_t bytes) {
  const std::vector<char> garbage(65536, 'g');
  for (const Deadline deadline = in_seconds(5); bytes > 0 && Clock::now() < deadline;) {
    pollfd polled{socket, POLLOUT, 0};
    poll(&polled, 1, 100);
    const ssize_t n =
        send(socket, garbage.data(), std::min(bytes, garbage.size()), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) return false;
    bytes -= n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  return true;
}

TEST_P(Strangers, one_who_says_nothing_is_waited_for_by_nobody) {
  expect_job_survives([](const Besieged& job) {
    Crowd expected_callers;
    expected_callers.push_back(job.knock());
    EXPECT_TRUE(expected_callers[0]);
    return expected_callers;
  });
}

TEST_P(Strangers, megabytes_of_garbage_are_cut_off_at_the_first_bytes) {
  expect_job_survives([](const Besieged& job) {
    for (int i = 0; i < 3; ++i) {
      const FileDescriptor socket = job.knock();
      EXPECT_FALSE(pour(socket.get(), 10'000'000));
    }
    return Crowd();
  });
}

TEST_P(Strangers, one_with_another_key_sees_that_and_is_not_taken) {
  expect_job_survives([](const Besieged& job) {
    Identity stranger = job.identity(kLate);
    stranger.job.set_key("a guess");
    const FileDescriptor socket = job.knock();
    const HandshakeResult result = shake_hands(stranger, 0, socket.get(), in_seconds(5));
    EXPECT_FALSE(result.accepted);
    EXPECT_TRUE(result.other_key);
    return Crowd();
  });
}

TEST_P(Strangers, one_of_another_job_gets_no_answer) {
  expect_job_survives([](const Besieged& job) {
    Identity stranger = job.identity(kLate);
    stranger.job = Job::random();
    const FileDescriptor socket = job.knock();
    const HandshakeResult result = shake_hands(stranger, 0, socket.get(), in_seconds(5));
    EXPECT_FALSE(result.accepted || result.other_key);
    return Crowd();
  });
}

TEST_P(Strangers, a_rank_that_came_or_is_to_come_is_not_whom_a_stranger_claims_to_be) {
  expect_job_survives([](const Besieged& job) {
    Crowd expected_callers;
    for (const std::uint32_t claimed : {1u, kLate, 0u, 77u}) {
      const Hello hello = hello_of(job.identity(claimed));
      const Proof guess{};
      const FileDescriptor liar = job.knock();
      send(liar.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
      send(liar.get(), &guess, sizeof(guess), MSG_NOSIGNAL);
      EXPECT_TRUE(is_hung_up(liar.get())) << claimed;
      expected_callers.push_back(job.knock());  // and one who stays with its claim
      send(expected_callers.back().get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    }
    return expected_callers;
  });
}

TEST_P(Strangers, hundreds_at_once_do_not_keep_a_rank_out) {
  expect_job_survives([](const Besieged& job) {
    const Hello claim = hello_of(job.identity(kLate));
    Crowd expected_callers;
    for (int i = 0; i < 300; ++i) {
      expected_callers.push_back(job.knock());
      if (i % 2 == 0) send(expected_callers.back().get(), &claim, sizeof(claim), MSG_NOSIGNAL);
    }
    EXPECT_TRUE(expected_callers.back());
    return expected_callers;
  });
}

TEST_P(Strangers, a_flood_that_goes_on_does_not_keep_a_rank_out) {
  std::jthread flood;
  expect_job_survives([&](const Besieged& job) {
    EXPECT_TRUE(job.knock());
    flood = std::jthread([&job](const std::stop_token& stop) {
      Crowd expected_callers;  // at most 200 at a time
      while (!stop.stop_requested()) {
        expected_callers.push_back(job.try_knock());
        if (!expected_callers.back()) return;  // the door is closed: all have come
        if (expected_callers.size() > 200) expected_callers.erase(expected_callers.begin());
      }
    });
    return Crowd();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Every, Strangers,
    testing::Values(Kind{"tcp", [] { return std::make_unique<BesiegedTcp>(nullptr); }},
                    Kind{"tls", [] { return std::make_unique<BesiegedTcp>(tls_by_key()); }},
                    Kind{"shm", [] { return std::make_unique<BesiegedShm>(); }}),
    [](const auto& each) { return each.param.name; });

// ---------------------------------------------------------------------------------------------
// Guesses at the key

/// Whether a guess at the key can be tried on what was said: whether the right one fits anything.
bool can_be_tried(const Identity& identity, const Hello& hello,
                  const std::vector<std::byte>& said) {
  if (said.size() < 32) return false;
  for (const std::string word : {"answer", "caller", "welcome", "session"}) {
    std::byte before[16 + sizeof(Hello) + 32] = {};
    std::memcpy(before, word.data(), word.size());
    std::memcpy(before + 16, &hello, sizeof(hello));
    std::memcpy(before + 16 + sizeof(hello), said.data(), 32);
    const Proof proof = prove(identity.job.key, before);
    if (std::search(said.begin(), said.end(), proof.begin(), proof.end()) != said.end())
      return true;
  }
  return false;
}

TEST_P(Strangers, one_who_proves_nothing_hears_nothing_to_try_guesses_on) {
  expect_job_survives([](const Besieged& job) {
    const Hello hello = hello_of(job.identity(kLate));
    const FileDescriptor stranger = job.knock();
    send(stranger.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    std::vector<std::byte> said;
    pollfd polled{stranger.get(), POLLIN, 0};
    while (poll(&polled, 1, said.empty() ? 5000 : 200) > 0) {
      std::byte bytes[256];
      const ssize_t n = recv(stranger.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (n <= 0) break;
      said.insert(said.end(), bytes, bytes + n);
    }
    EXPECT_FALSE(said.empty());
    EXPECT_FALSE(can_be_tried(job.identity(0), hello, said));
    return Crowd();
  });
}

TEST(Job, a_guess_at_the_secret_costs_time) {
  const auto cpu_seconds = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  Job job = Job::random();
  const double start = cpu_seconds();
  job.set_key("a guess");
  EXPECT_GT(cpu_seconds() - start, 0.01);
}

TEST(Job, keys_differ_by_secret_and_by_job) {
  Job one = Job::random();
  Job other = Job::random();
  one.set_key("tea");
  other.set_key("tea");
  EXPECT_NE(one.key, other.key);
  Job same = one;
  same.set_key("tea");
  EXPECT_EQ(one.key, same.key);
  same.set_key("coffee");
  EXPECT_NE(one.key, same.key);
}

TEST(Job, without_hmac_there_is_no_proof) {
  ASSERT_EQ(EVP_set_default_properties(nullptr, "provider=none"), 1);  // as strict hosts set it
  const auto unavailable = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.code() == ErrorCode::unavailable;
    }
    return false;
  };
  Job job;
  EXPECT_TRUE(unavailable([&] { prove(job.key, job.id); }));
  EXPECT_TRUE(unavailable([&] { job.set_key("secret"); }));
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
}

// ---------------------------------------------------------------------------------------------
// Replay

constexpr std::size_t kCallerBytes = sizeof(Hello) + sizeof(Proof);
constexpr std::size_t kAnswererBytes = sizeof(Answer) + sizeof(Proof);

/// Stands between a caller and an answerer, passes on what they say on all connections, and keeps
/// it for the first.
class Wiretap {
 public:
  explicit Wiretap(std::string target)
      : listener_(listen_tcp("127.0.0.1", 0)),
        target_(std::move(target)),
        thread_([this] { run(); }) {}

  const std::vector<std::string>& addresses() const { return listener_.addresses; }
  /// What caller and answerer said, once the first connection has ended.
  std::array<std::vector<std::byte>, 2> said() {
    thread_.join();
    return std::move(said_);
  }

 private:
  struct Wire {
    FileDescriptor caller, answerer;
    int end(std::size_t identity) const { return (identity == 0 ? caller : answerer).get(); }
  };

  void run() {
    std::vector<Wire> wires;
    while (true) {
      std::vector<pollfd> polled{{listener_.sockets[0].get(), POLLIN, 0}};
      for (const Wire& wire : wires) {
        for (const std::size_t identity : {0u, 1u})
          polled.push_back({wire.end(identity), POLLIN, 0});
      }
      if (poll(polled.data(), polled.size(), 20'000) <= 0) return;
      for (std::size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents == 0) continue;
        const std::size_t wire = (i - 1) / 2;
        if (!pass_on(wires[wire], (i - 1) % 2, wire == 0)) return;
      }
      if (polled[0].revents != 0) {
        wires.push_back({FileDescriptor(accept(listener_.sockets[0].get(), nullptr, nullptr)),
                         connect_tcp_address(target_, in_seconds(20))});
      }
    }
  }

  bool pass_on(const Wire& wire, std::size_t identity, bool keep) {
    std::byte bytes[4096];
    const ssize_t n = recv(wire.end(identity), bytes, sizeof(bytes), 0);
    if (n <= 0) return false;
    if (keep) said_[identity].insert(said_[identity].end(), bytes, bytes + n);
    send(wire.end(1 - identity), bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL);
    return true;
  }

  Listener listener_;
  std::string target_;
  std::array<std::vector<std::byte>, 2> said_;
  std::thread thread_;
};

/// Two ranks of one job, whose key stays the same so that a recording could be of use.
class Replay : public testing::TestWithParam<bool> {
 protected:
  using Connecting = std::future<std::unique_ptr<Router>>;

  Connecting connect(std::uint32_t me, Listener listener, std::vector<std::string> to_zero) {
    TransportOptions options{.job = job_,
                             .me = me,
                             .count = 2,
                             .peers = {1 - me},
                             .addresses = {std::move(to_zero), {}},
                             .message_bytes = kPartyMessageBytes,
                             .deadline = in_seconds(20),
                             .tls = GetParam() ? tls_by_key() : nullptr};
    return std::async(std::launch::async, [options, listener = std::move(listener)]() mutable {
      return std::make_unique<Router>(kTcp.connect(options, std::move(listener)), 2);
    });
  }

  std::array<std::vector<std::byte>, 2> record() {
    Listener listener = listen_tcp("lo", 0);
    Wiretap wire(listener.addresses[0]);
    auto zero = connect(0, std::move(listener), {});
    auto one = connect(1, {}, wire.addresses());
    expect_ping(*zero.get(), *one.get());
    return wire.said();
  }

  static void expect_ping(Router& zero, Router& one) {
    const std::vector<std::byte> ping(1000, std::byte{5});
    Recorder inboxes[2];
    one.send(0, 3, ping, 0);
    ASSERT_TRUE(progress_until(one, inboxes[1], [&] { return !inboxes[1].tickets.empty(); }));
    ASSERT_TRUE(progress_until(zero, inboxes[0], [&] { return !inboxes[0].arrivals.empty(); }));
    const auto bytes = inboxes[0].arrivals[0].bytes;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), ping.begin(), ping.end()));
    zero.release(inboxes[0].arrivals[0]);
  }

  Job job_ = Job::random();
};

TEST_P(Replay, a_recorded_caller_is_not_taken) {
  const auto said = record();
  ASSERT_GE(said[0].size(), kCallerBytes);
  Listener listener = listen_tcp("lo", 0);
  const std::vector<std::string> addresses = listener.addresses;
  auto zero = connect(0, std::move(listener), {});
  {
    const FileDescriptor replayer = connect_tcp_address(addresses[0], in_seconds(20));
    send(replayer.get(), said[0].data(), sizeof(Hello), MSG_NOSIGNAL);
    Answer answer;  // which shows that the hello was good enough, as it must be
    ASSERT_EQ(recv(replayer.get(), &answer, sizeof(answer), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(answer)));
    send(replayer.get(), said[0].data() + sizeof(Hello), said[0].size() - sizeof(Hello),
         MSG_NOSIGNAL);
    Proof refusal;
    ASSERT_EQ(recv(replayer.get(), &refusal, sizeof(refusal), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(refusal)));
    EXPECT_EQ(refusal, Proof{});
    char more;
    EXPECT_LE(recv(replayer.get(), &more, 1, 0), 0);
  }
  auto one = connect(1, {}, addresses);
  expect_ping(*zero.get(), *one.get());
}

TEST_P(Replay, a_recorded_answerer_is_not_believed) {
  const auto said = record();
  ASSERT_GE(said[1].size(), kAnswererBytes);
  Listener listener = listen_tcp("lo", 0);
  const Listener impostor = listen_tcp("127.0.0.1", 0);
  std::vector<std::string> addresses = impostor.addresses;
  addresses.insert(addresses.end(), listener.addresses.begin(), listener.addresses.end());
  auto one = connect(1, {}, addresses);
  {
    const FileDescriptor caller(accept(impostor.sockets[0].get(), nullptr, nullptr));
    Hello hello;
    ASSERT_EQ(recv(caller.get(), &hello, sizeof(hello), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(hello)));
    send(caller.get(), said[1].data(), said[1].size(), MSG_NOSIGNAL);
    Proof proof;
    ASSERT_EQ(recv(caller.get(), &proof, sizeof(proof), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(proof)));
    char more;
    EXPECT_LE(recv(caller.get(), &more, 1, 0), 0);
  }
  shutdown(impostor.sockets[0].get(), SHUT_RDWR);
  auto zero = connect(0, std::move(listener), {});
  expect_ping(*zero.get(), *one.get());
}

/// At one of a peer's addresses, as may happen where another network uses it, too.
TEST_P(Replay, an_answerer_who_falls_silent_costs_seconds_and_not_the_deadline) {
  Listener listener = listen_tcp("lo", 0);
  const Listener stranger = listen_tcp("127.0.0.1", 0);
  std::vector<std::string> addresses = stranger.addresses;
  addresses.insert(addresses.end(), listener.addresses.begin(), listener.addresses.end());
  const auto begun = Clock::now();
  auto one = connect(1, {}, addresses);
  const FileDescriptor caller(accept(stranger.sockets[0].get(), nullptr, nullptr));
  const Answer anything{};
  send(caller.get(), &anything, sizeof(anything), MSG_NOSIGNAL);
  auto zero = connect(0, std::move(listener), {});
  expect_ping(*zero.get(), *one.get());
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(8));
}

INSTANTIATE_TEST_SUITE_P(Every, Replay, testing::Bool(),
                         [](const auto& each) { return each.param ? "tls" : "tcp"; });

}  // namespace
}  // namespace gradwire::test
