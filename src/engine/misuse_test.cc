// Callers and peers that do what they must not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "engine/engine_test_ranks.h"
#include "gradwire/error.h"
#include "gradwire/frame.h"
#include "rendezvous/rendezvous.h"

namespace gradwire {
namespace {

TEST(Residuals, are_neither_saved_nor_loaded_while_an_operation_is_under_way) {
  auto ranks = Communicator::in_process(2);
  const auto empty = ranks[0]->save_residuals();
  Numbers x[2] = {integers(100'000, 0), integers(100'000, 1)};
  const auto reduce = [&](std::uint32_t rank) {
    const Tensor tensor{
        .name = "x", .view = {x[rank].data(), x[rank].size()}, .way = Way::parse("sign+feedback")};
    return ranks[rank]->all_reduce({&tensor, 1});
  };
  Work first = reduce(0);  // under way until rank 1 comes
  for (int i = 0; i < 100; ++i) {
    EXPECT_THROW(ranks[0]->load_residuals(empty), Error);
    EXPECT_THROW(ranks[0]->save_residuals(), Error);
  }
  reduce(1).wait();
  first.wait();
  const auto kept = ranks[0]->save_residuals();
  EXPECT_GT(kept.size(), empty.size());
  ranks[0]->load_residuals(empty);
  EXPECT_EQ(ranks[0]->save_residuals(), empty);
}

TEST(Tensors, that_share_memory_are_refused_in_one_call) {
  const auto alone = Communicator::connect({});
  Numbers x(30);
  const auto at = [&](const char* name, std::size_t first, std::size_t count) {
    return Tensor{.name = name, .view = {x.data() + first, count}};
  };
  const auto refused = [&](std::vector<Tensor> tensors) {
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { alone->all_reduce(tensors); },
             [&] { alone->broadcast(tensors, 0); },
             [&] { alone->reduce_scatter(tensors); },
             [&] { alone->all_gather(tensors); },
         }) {
      try {
        call();
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_STREQ(error.what(),
                     "tensors 'a' and 'b' of one call share memory: give each number once");
      }
    }
  };
  refused({at("a", 0, 30), at("b", 0, 30)});
  refused({at("b", 19, 11), at("a", 0, 20)});
  refused({at("a", 0, 20), at("c", 25, 0), at("b", 10, 1)});
  const std::vector<Tensor> sound{at("a", 20, 10), at("b", 10, 0), at("c", 0, 20)};
  alone->all_reduce(sound).wait();
}

TEST(Tensors, of_the_same_name_are_refused_in_one_call) {
  const auto alone = Communicator::connect({});
  Numbers x(4), y(4);
  const std::vector<Tensor> twice{{"a", {x.data(), 4}}, {"a", {y.data(), 4}}};
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { alone->all_reduce(twice); },
           [&] { alone->reduce_scatter(twice); },
       }) {
    try {
      call();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "two tensors of one call have the name 'a': give each its own, or none");
    }
  }
  const std::vector<Tensor> nameless{{"", {x.data(), 4}}, {"", {y.data(), 4}}};
  alone->all_reduce(nameless).wait();
}

TEST(Abort, fails_what_is_under_way_and_what_follows_on_all_ranks_and_says_why) {
  auto ranks = Communicator::in_process(3);
  std::vector<Work> waiting = {ranks[0]->barrier(), ranks[2]->barrier()};
  ranks[1]->abort("rank 1 gave up: its numbers are wrong");
  waiting.push_back(ranks[1]->barrier());
  for (Work& work : waiting) {
    try {
      work.wait();
      ADD_FAILURE() << "did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_failed);
      EXPECT_STREQ(error.what(), "rank 1 gave up: its numbers are wrong");
    }
  }
}

TEST(Connect, one_rank_alone_hears_of_mistakes_that_others_would) {
  for (const ConnectOptions& wrong :
       {ConnectOptions{.store = "nfs:/x"}, ConnectOptions{.security = {.encryption = "yes"}},
        ConnectOptions{.security = {.certificate = "/nope"}},
        ConnectOptions{.network = {.transport = "ib"}},
        ConnectOptions{.tuning = {.algorithm = "snake"}}}) {
    EXPECT_THROW(Communicator::connect(wrong), Error);
  }
  EXPECT_NO_THROW(
      Communicator::connect({.store = "tcp:localhost:1", .network = {.transport = "tcp"}}));
}

TEST(Timeouts, none_is_refused_and_the_longest_is_bounded) {
  using std::chrono::milliseconds;
  for (const milliseconds none : {milliseconds(0), milliseconds(-1), milliseconds::min()}) {
    EXPECT_THROW(Communicator::connect({.timeout = none}), Error);
  }
  const auto alone = Communicator::connect({.timeout = milliseconds::max()});
  alone->barrier().wait();
  alone->barrier({.timeout = milliseconds::max()}).wait();
  EXPECT_THROW(alone->barrier({.timeout = milliseconds(-1)}), Error);
}

TEST(Connect, what_the_hook_throws_ends_it) {
  int calls = 0;
  ConnectOptions options{.rank = 0, .size = 2, .store = "file:" + testing::TempDir() + "hooked"};
  options.while_waiting = [&] {
    if (++calls == 3) throw std::runtime_error("enough");
  };
  EXPECT_THROW(Communicator::connect(options), std::runtime_error);
  std::filesystem::remove_all(testing::TempDir() + "hooked");
  EXPECT_EQ(calls, 3);
}

TEST(Connect, the_hook_is_called_while_another_process_locks_the_store) {
  const std::string directory = testing::TempDir() + "locked";
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  const FileDescriptor counter(
      open((directory + "/lives-0").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(counter.get(), LOCK_EX), 0);
  ConnectOptions options{.rank = 0, .size = 2, .store = "file:" + directory};
  options.timeout = std::chrono::milliseconds(2000);
  options.while_waiting = [] { throw std::logic_error("enough"); };
  EXPECT_THROW(Communicator::connect(options), std::logic_error);
  std::filesystem::remove_all(directory);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

/// Rank 0, and rank 1's transport, which sends what the test likes.
class LyingRank : public testing::TestWithParam<const char*>, private Inbox {
 protected:
  LyingRank() {
    const std::string directory = testing::TempDir() + "lying-" + GetParam() + "-" +
                                  std::to_string(Clock::now().time_since_epoch().count());
    const auto store = open_file_store(directory, false);
    std::thread other([&] {
      const auto own = open_file_store(directory, false);
      RendezvousOptions options;
      options.me = 1;
      options.count = 2;
      options.transport = GetParam();
      options.message_bytes = std::size_t{64} << 20;
      options.deadline = Clock::now() + std::chrono::seconds(30);
      liar_ = rendezvous(*own, options).router;
    });
    honest_ =
        Communicator::connect({.rank = 0, .size = 2, .network = {.transport = GetParam()}}, *store);
    other.join();
    std::filesystem::remove_all(directory);
  }

  /// As many messages as rank 0 takes before it gives up, which it does in time. Each would do for
  /// a barrier.
  void send(Tag tag, int count) {
    std::span<std::byte> bytes = liar_->send_memory();
    if (bytes.empty()) bytes = memory_;
    bytes = bytes.first(encode_frame({}, bytes.first(memory_.size())).bytes);
    const auto until = Clock::now() + std::chrono::seconds(30);
    for (int sent = 0; sent < count && !refused_ && Clock::now() < until; ++sent) {
      ++unsent_;
      liar_->send(0, tag, bytes, 0);
      do {
        liar_->progress(*this);
      } while (unsent_ > 100 && !refused_ && Clock::now() < until);
    }
  }

  void expect_garbage(const std::string& what) {
    try {
      honest_->barrier({.timeout = std::chrono::seconds(2)}).wait();
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_failed);
      EXPECT_EQ(std::string(error.what()), "rank 1 sent garbage: " + what);
    }
  }

  std::unique_ptr<Communicator> honest_;
  std::unique_ptr<Router> liar_;

 private:
  bool wants(std::uint32_t, Tag) noexcept override { return true; }
  void arrived(const Arrival& arrival) noexcept override { liar_->release(arrival); }
  void sent(std::uint64_t) noexcept override { --unsent_; }
  void failed(const Failure&) noexcept override { refused_ = true; }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  int unsent_ = 0;
  bool refused_ = false;
};

TEST_P(LyingRank, a_million_messages_of_an_operation_that_has_ended_are_refused) {
  Work work = honest_->barrier();
  send(0, 1);  // all that the barrier needs
  work.wait();
  const std::size_t before = resident_bytes();
  send(0, 1'000'000);
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
  expect_garbage("a message for an operation that has ended");
}

TEST_P(LyingRank, a_million_messages_of_an_operation_to_come_are_refused) {
  const std::size_t before = resident_bytes();
  send(3, 1'000'000);
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
  expect_garbage("more messages than the operation has");
}

TEST_P(LyingRank, one_message_too_many_is_refused) {
  send(0, 2);
  expect_garbage("more messages than the operation has");
}

INSTANTIATE_TEST_SUITE_P(Transports, LyingRank, testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace gradwire
