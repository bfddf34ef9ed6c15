#include "rendezvous/store.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "net/addresses.h"
#include "net/handshake.h"
#include "net/tcp_test_helpers.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

/// A port that nobody uses now.
std::string free_port() {
  const FileDescriptor probe(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  bind(probe.get(), reinterpret_cast<sockaddr*>(&address), length);
  getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return std::to_string(ntohs(address.sin_port));
}

struct Case {
  std::string name;
  std::function<std::string()> make;  // the store's text
};

class StoreTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { text_ = GetParam().make(); }
  void TearDown() override {
    if (text_.starts_with("file:")) fs::remove_all(text_.substr(5));
  }
  std::string text_;
};

TEST_P(StoreTest, what_one_rank_sets_all_get) {
  const auto zero = open_store(text_, 0, in(5000));
  const auto one = open_store(text_, 1, in(5000));
  const std::string binary("\0\n\xff text", 8);
  zero->set("a", binary, in(5000));
  one->set("b", "", in(5000));
  EXPECT_EQ(one->get("a", in(5000)), binary);
  EXPECT_EQ(zero->get("b", in(5000)), "");
  EXPECT_EQ(zero->get("a", in(5000)), binary);
}

TEST_P(StoreTest, a_get_waits_for_its_key) {
  const auto zero = open_store(text_, 0, in(5000));
  std::thread late([&] {
    const auto one = open_store(text_, 1, in(5000));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    one->set("late", std::string(60'000, 'x'), in(5000));
  });
  EXPECT_EQ(zero->get("late", in(10'000)).size(), 60'000u);
  late.join();
}

TEST_P(StoreTest, a_key_that_never_comes_is_a_timeout) {
  const auto zero = open_store(text_, 0, in(5000));
  try {
    zero->get("never", in(100));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
  }
}

TEST_P(StoreTest, counters_count_what_all_ranks_add) {
  const auto zero = open_store(text_, 0, in(5000));
  EXPECT_EQ(zero->add("n", 5, in(5000)), 5);
  EXPECT_EQ(zero->add("n", -7, in(5000)), -2);
  EXPECT_EQ(zero->add("n", 2, in(5000)), 0);
  constexpr std::uint32_t kRanks = 4;
  constexpr int kTimes = 50;
  std::vector<std::vector<std::int64_t>> sums(kRanks + 1);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 1; rank <= kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = open_store(text_, rank, in(5000));
      for (int i = 0; i < kTimes; ++i) sums[rank].push_back(store->add("n", 1, in(20'000)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::int64_t> all;
  for (const auto& each : sums) all.insert(each.begin(), each.end());
  EXPECT_EQ(all.size(), kRanks * kTimes) << "two ranks got the same sum";
  EXPECT_EQ(*all.rbegin(), kRanks * kTimes);
}

INSTANTIATE_TEST_SUITE_P(Every, StoreTest,
                         testing::Values(Case{"file",
                                              [] {
                                                std::string path =
                                                    fs::temp_directory_path() / "gradwire-XXXXXX";
                                                return std::string("file:") + mkdtemp(path.data());
                                              }},
                                         Case{"tcp",
                                              [] { return "tcp:localhost:" + free_port(); }}),
                         [](const auto& each) { return each.param.name; });

/// A new directory that ends with the test.
class FileStoreTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  static unsigned mode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 0777;
  }
  std::string refusal(const std::string& path, const std::string& secret = {}) {
    try {
      open_store("file:" + path, 0, in(5000), secret);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return {};
  }

  std::string made() {
    std::string path = fs::temp_directory_path() / "gradwire-XXXXXX";
    return mkdtemp(path.data());
  }
  std::string folder_ = made();
};

TEST_F(FileStoreTest, is_for_this_user_alone) {
  for (const std::string& path : {folder_ + "/a/b", folder_ + "/c/"}) {
    const auto store = open_store("file:" + path, 0, in(5000));
    store->set("job", "key", in(5000));
    store->add("count", 1, in(5000));
    EXPECT_EQ(mode_of(path), 0700u) << path;
    for (const auto& file : fs::directory_iterator(path)) {
      EXPECT_EQ(mode_of(file.path()), 0600u) << file.path();
    }
  }
}

TEST_F(FileStoreTest, a_directory_that_others_can_write_to_is_refused_unless_nothing_is_secret) {
  fs::permissions(folder_, fs::perms::all);
  EXPECT_NE(refusal(folder_).find("can be written by other users"), std::string::npos);
  EXPECT_NE(refusal(folder_).find("give all ranks a secret"), std::string::npos);
  EXPECT_EQ(refusal(folder_, "secret"), "");
}

TEST_F(FileStoreTest, a_directory_of_another_user_is_refused_unless_nothing_is_secret) {
  ASSERT_EQ(geteuid(), 0u) << "run the tests as root";
  ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
  EXPECT_NE(refusal(folder_).find("belongs to another user"), std::string::npos);
  EXPECT_EQ(refusal(folder_, "secret"), "");
}

TEST_F(FileStoreTest, follows_no_links) {
  const auto store = open_store("file:" + folder_, 0, in(5000));
  fs::create_symlink("/etc/passwd", folder_ + "/job");
  EXPECT_THROW(store->get("job", in(50)), Error);
  store->set("job", "key", in(5000));
  EXPECT_EQ(store->get("job", in(50)), "key");
  EXPECT_FALSE(fs::is_symlink(folder_ + "/job"));
}

TEST(TcpStore, nobody_serves_is_a_timeout_that_names_the_store) {
  const std::string text = "tcp:localhost:" + free_port();
  try {
    open_store(text, 1, in(100));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_NE(std::string(error.what()).find(text.substr(4)), std::string::npos) << error.what();
  }
}

/// Somebody who listens on this host and never takes a call.
class Silent {
 public:
  /// `backlog` calls are taken by the system; the next ones get no answer at all.
  explicit Silent(int backlog) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    bind(listener_.get(), reinterpret_cast<sockaddr*>(&address_), length);
    listen(listener_.get(), backlog);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &length);
  }

  std::string store() const { return fmt::format("tcp:127.0.0.1:{}", ntohs(address_.sin_port)); }

  /// Fills the backlog.
  void be_called(int times) {
    for (int i = 0; i < times; ++i) {
      callers_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      connect(callers_.back().get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_));
    }
  }

 private:
  FileDescriptor listener_;
  sockaddr_in address_{};
  std::vector<FileDescriptor> callers_;
};

/// The code that `body` fails with, if it does so within `limit`.
std::optional<ErrorCode> failure_within(std::chrono::milliseconds limit,
                                        const std::function<void()>& body) {
  const Deadline until = Clock::now() + limit;
  try {
    body();
  } catch (const Error& error) {
    if (Clock::now() < until) return error.code();
  }
  return std::nullopt;
}

TEST(TcpStore, a_host_that_does_not_answer_calls_is_a_timeout) {
  Silent silent(0);
  silent.be_called(8);
  const auto call = [&] { open_store(silent.store(), 1, in(200)); };
  EXPECT_EQ(failure_within(std::chrono::milliseconds(1200), call), ErrorCode::timeout);
}

TEST(TcpStore, a_host_that_takes_calls_and_says_nothing_is_a_timeout) {
  const Silent silent(8);
  const auto call = [&] { open_store(silent.store(), 1, in(200)); };
  EXPECT_EQ(failure_within(std::chrono::milliseconds(1200), call), ErrorCode::timeout);
}

/// Stands between one rank and its store, and passes nothing on once it is frozen.
class Relay {
 public:
  explicit Relay(std::string port) : port_(std::move(port)) {}
  std::string store() const { return "tcp:127.0.0.1:" + std::to_string(here_); }
  void freeze() {
    thread_.request_stop();
    thread_.join();
  }

 private:
  static std::uint16_t port_of(const Listener& listener) {
    const std::string& address = listener.addresses[0];
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.find(' ') + 1)));
  }

  void run(const std::stop_token& stop) {
    ends_[0] = FileDescriptor(accept(listener_.sockets[0].get(), nullptr, nullptr));
    ends_[1] = connect_tcp_host("localhost", port_, in(5000));
    while (!stop.stop_requested()) {
      pollfd polled[2] = {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}};
      poll(polled, 2, 10);
      for (const std::size_t i : {0u, 1u}) {
        char bytes[4096];
        const ssize_t n = recv(ends_[i].get(), bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n > 0) send(ends_[1 - i].get(), bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL);
      }
    }
  }

  std::string port_;
  Listener listener_ = listen_tcp("127.0.0.1", 0);
  std::uint16_t here_ = port_of(listener_);
  FileDescriptor ends_[2];
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

TEST(TcpStore, a_store_that_does_not_answer_requests_is_a_timeout) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000));
  Relay relay(port);
  const auto store = open_store(relay.store(), 1, in(5000));
  relay.freeze();
  const std::chrono::milliseconds limit(1200);
  const auto small = [&] { store->set("a", "1", in(200)); };
  EXPECT_EQ(failure_within(limit, small), ErrorCode::timeout);
  const std::string much(32 << 20, 'x');
  const auto large = [&] { store->set("a", much, in(200)); };
  EXPECT_EQ(failure_within(limit, large), ErrorCode::timeout);
  const auto get = [&] { store->get("a", in(200)); };
  EXPECT_EQ(failure_within(limit, get), ErrorCode::timeout);
}

TEST(TcpStore, garbage_and_strangers_change_nothing) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000));
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(
        connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string garbage(i % 2 == 0 ? 500'000 : 10, static_cast<char>('a' + i));
    send(strangers.back().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  zero->set("a", "1", in(5000));
  EXPECT_EQ(zero->get("a", in(5000)), "1");
}

FileDescriptor knock(const std::string& port) {
  return connect_tcp_host("127.0.0.1", port, in(20'000));
}

TEST(TcpStore, hundreds_of_silent_strangers_keep_no_rank_out) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000), "secret");
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 400; ++i) strangers.push_back(knock(port));
  ASSERT_TRUE(strangers.back());
  const auto one = open_store("tcp:localhost:" + port, 1, in(15'000), "secret");
  one->set("a", "1", in(5000));
  EXPECT_EQ(zero->get("a", in(5000)), "1");
}

TEST(TcpStore, megabytes_of_garbage_are_cut_off) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000), "secret");
  const FileDescriptor stranger = knock(port);
  const std::vector<char> garbage(10'000'000, 'g');
  ssize_t sent = 0;
  for (std::size_t at = 0; at < garbage.size() && sent >= 0; at += static_cast<std::size_t>(sent)) {
    sent = send(stranger.get(), garbage.data() + at, garbage.size() - at, MSG_NOSIGNAL);
  }
  EXPECT_LT(sent, 0);
  zero->set("a", "1", in(5000));
  EXPECT_EQ(zero->get("a", in(5000)), "1");
}

TEST(TcpStore, without_the_secret_nothing_can_be_read_or_written) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000), "secret");
  zero->set("a", "1", in(5000));
  const FileDescriptor stranger = knock(port);
  const std::string request = "get a\n" + std::string(100, 'x');
  send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL);
  char byte;
  EXPECT_LE(recv(stranger.get(), &byte, 1, 0), 0);
}

TEST(TcpStore, another_secret_is_an_error_at_once_and_rank_0_hears_of_it) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000), "tea");
  for (const char* secret : {"coffee", ""}) {
    try {
      open_store("tcp:localhost:" + port, 1, in(60'000), secret);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("another secret or none"), std::string::npos);
    }
  }
  try {
    zero->get("never", in(500));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_NE(std::string(error.what()).find("2 callers did not prove"), std::string::npos)
        << error.what();
  }
}

/// Answers as a store of the job that nobody has named: its id and its key are zeros.
TEST(TcpStore, an_impostor_without_the_secret_is_not_believed) {
  const std::string port = free_port();
  const Listener listener = listen_tcp("127.0.0.1", static_cast<std::uint16_t>(std::stoi(port)));
  std::atomic<int> believed = 0;
  const std::jthread impostor([&](const std::stop_token& stop) {
    const auto anybody = [](std::uint32_t) { return true; };
    Acceptor acceptor({.job = {}, .purpose = Purpose::store, .me = 0}, listener.descriptors(), 8,
                      anybody, [&](auto&&...) { ++believed; });
    while (!stop.stop_requested()) {
      std::vector<pollfd> polled;
      acceptor.add_to(polled);
      poll(polled.data(), polled.size(), 10);
      acceptor.look(polled);
    }
  });
  const auto call = [&] { open_store("tcp:127.0.0.1:" + port, 1, in(5000), "secret"); };
  EXPECT_EQ(failure_within(std::chrono::seconds(6), call), ErrorCode::invalid_argument);
  EXPECT_EQ(believed, 0);
}

TEST(TcpStore, a_rank_that_comes_again_waits_for_the_next_store) {
  const std::string store = "tcp:127.0.0.1:" + free_port();
  auto zero = open_store(store, 0, in(5000));
  EXPECT_EQ(open_store(store, 1, in(5000))->add("lives", 1, in(5000)), 1);
  std::thread next([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    zero.reset();
    zero = open_store(store, 0, in(5000));
  });
  EXPECT_EQ(open_store(store, 1, in(5000))->add("lives", 1, in(5000)), 1);
  next.join();
}

TEST(TcpStore, waits_for_those_who_still_read_and_not_for_ever) {
  const std::string store = "tcp:127.0.0.1:" + free_port();
  auto zero = open_store(store, 0, in(10'000));
  zero->set("a", "1", in(5000));
  const auto one = open_store(store, 1, in(5000));
  const Deadline start = Clock::now();
  auto leaving = std::async(std::launch::async, [&] { zero.reset(); });
  EXPECT_EQ(one->get("a", in(5000)), "1");
  leaving.get();
  EXPECT_GT(Clock::now() - start, std::chrono::milliseconds(1500));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
}

TEST(TcpStore, holds_so_much_and_no_more) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:localhost:" + port, 0, in(5000));
  const auto glutton = open_store("tcp:localhost:" + port, 1, in(5000));
  const std::string value(65536, 'v');
  int kept = 0;
  try {
    for (; kept < 2000; ++kept) {
      glutton->set("same", value, in(5000));  // replaces, so it does not count twice
      glutton->set(std::to_string(kept), value, in(5000));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_failed);
  }
  EXPECT_GT(kept, 1000);
  EXPECT_LT(kept, 1024);
  zero->set("a", "", in(5000));
  EXPECT_EQ(zero->get("7", in(5000)), value);
}

TEST(TcpStoreAddress, the_store_listens_on_its_host_alone) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:127.0.0.1:" + port, 0, in(5000));
  EXPECT_TRUE(answers("127.0.0.1", port));
  EXPECT_FALSE(answers("127.0.0.2", port));
}

TEST(TcpStoreAddress, a_host_of_no_interface_that_leads_here_will_do) {
  const std::string port = free_port();  // as 127.0.1.1, which Debian gives a host's name
  const auto zero = open_store("tcp:127.0.1.1:" + port, 0, in(5000));
  EXPECT_TRUE(answers("127.0.1.1", port));
  EXPECT_FALSE(answers("127.0.0.1", port));
}

TEST(TcpStoreAddress, all_addresses_have_to_be_asked_for) {
  const std::string port = free_port();
  const auto zero = open_store("tcp:0.0.0.0:" + port, 0, in(5000));
  EXPECT_TRUE(answers("127.0.0.2", port));
}

TEST(TcpStoreAddress, a_host_elsewhere_is_refused_on_rank_0_with_what_to_give) {
  const auto open = [] { open_store("tcp:192.0.2.7:29500", 0, in(60'000)); };
  const std::string error = error_of(open, ErrorCode::unavailable);
  expect_part(error, "192.0.2.7");
  expect_part(error, "lo (127.0.0.1)");
  expect_part(error, "0.0.0.0");
}

TEST(TcpStoreAddress, who_waits_for_ranks_on_loopback_hears_that_no_other_host_reaches_it) {
  const auto zero = open_store("tcp:localhost:" + free_port(), 0, in(5000));
  expect_part(error_of([&] { zero->get("never", in(50)); }, ErrorCode::timeout),
              "which no other host reaches");
}

TEST(OpenStore, what_is_no_store_is_refused_with_what_is) {
  for (const char* text : {"", "file:", "tcp:", "tcp:host", "tcp:host:", "tcp:host:x", "tcp:host:0",
                           "tcp:host:70000", "redis:x"}) {
    try {
      open_store(text, 1, in(10));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << text;
      EXPECT_NE(std::string(error.what()).find("tcp:HOST:PORT"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace gradwire
