#include "engine/clock_offset.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "gradwire/error.h"
#include "net/job.h"

namespace gradwire::engine {
namespace {

constexpr int kQuestions = 16;
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kPollMs = 10;
constexpr Tag kTag = 0;

/// A question has nothing; an answer has the clock and its identity; the last message to a rank has
/// what its clock is ahead, and the communicator.
struct Words {
  std::int64_t clock_ns = 0;
  std::uint64_t clock_identity = 0;
  std::uint64_t communicator = 0;
};

/// Exchanges words with one peer after the other. Messages of operations that others have begun
/// wait meanwhile with their senders.
class Exchange final : private Inbox {
 public:
  Exchange(Router& router, Deadline deadline)
      : router_(router), deadline_(deadline), memory_(router.send_memory()) {
    if (!memory_.empty()) return;
    own_memory_.resize(sizeof(Words));
    memory_ = own_memory_;
  }

  void send(std::uint32_t peer, const Words& words) {
    std::memcpy(memory_.data(), &words, sizeof words);
    sending_ = true;
    router_.send(peer, kTag, memory_.first(sizeof words), 0);
    wait_until(peer, [&] { return !sending_; });
  }

  /// Peers that left, and why.
  std::map<std::uint32_t, std::string> take_lost() { return std::move(lost_); }

  Words receive(std::uint32_t peer) {
    wanted_ = peer;
    wait_until(peer, [&] { return words_.has_value(); });
    const Words words = *words_;
    words_.reset();
    return words;
  }

 private:
  template <class Done>
  void wait_until(std::uint32_t peer, Done done) {
    auto spin_until = Clock::now() + kSpin;
    while (true) {
      const bool did = router_.progress(*this);
      if (failure_) throw Error(ErrorCode::peer_failed, *failure_);
      if (done()) return;
      if (const auto lost = lost_.find(peer); lost != lost_.end()) {
        throw Error(ErrorCode::peer_failed, describe(peer, lost->second));
      }
      const auto now = Clock::now();
      if (now > deadline_) {
        throw Error(ErrorCode::timeout,
                    fmt::format("rank {} did not tell its clock for the trace in time", peer));
      }
      if (did) spin_until = now + kSpin;
      now < spin_until ? yield() : sleep();
    }
  }
  static void yield() { sched_yield(); }
  void sleep() {
    keep_waiting();
    if (!router_.arm()) return;
    pollfd polled{router_.event(), POLLIN, 0};
    poll(&polled, 1, kPollMs);
  }

  bool wants(std::uint32_t peer, Tag) noexcept override { return wanted_ == peer && !words_; }
  void arrived(const Arrival& arrival) noexcept override {
    words_.emplace();
    std::memcpy(&*words_, arrival.bytes.data(), std::min(arrival.bytes.size(), sizeof(Words)));
    router_.release(arrival);
    wanted_.reset();
  }
  void sent(std::uint64_t) noexcept override { sending_ = false; }
  /// One that has left matters only to those who wait for it: it may have been done.
  void failed(const Failure& failure) noexcept override {
    if (failure.fault == Fault::lost) {
      lost_[failure.peer] = failure.reason;
    } else {
      failure_ = describe(failure.peer, failure.reason);
    }
  }
  static std::string describe(std::uint32_t peer, const std::string& reason) {
    return fmt::format("rank {} failed: {}", peer, reason);
  }

  Router& router_;
  const Deadline deadline_;
  std::span<std::byte> memory_;
  std::vector<std::byte> own_memory_;
  bool sending_ = false;
  std::optional<std::uint32_t> wanted_;  // the peer whose next message is for us
  std::optional<Words> words_;
  std::map<std::uint32_t, std::string> lost_;
  std::optional<std::string> failure_;
};

/// The same for all processes that have the same steady clock, as those of a host do unless they
/// are in different time namespaces. 0 where it cannot be told.
std::uint64_t clock_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code failure;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/time", failure);
  if (boot.empty() || failure) return 0;
  boot += space.string();
  return checksum(std::as_bytes(std::span(boot.data(), boot.size())));
}

/// What the peer's clock is ahead of ours.
std::int64_t measure_offset(Exchange& exchange, std::uint32_t peer) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t offset = 0;
  const std::uint64_t ours = clock_identity();
  for (int i = 0; i < kQuestions; ++i) {
    const std::int64_t asked = trace::now_ns();
    exchange.send(peer, {});
    const Words theirs = exchange.receive(peer);
    const std::int64_t answered = trace::now_ns();
    if (answered - asked >= shortest) continue;
    const bool same_clock = ours != 0 && theirs.clock_identity == ours;
    shortest = answered - asked;
    offset = same_clock ? 0 : theirs.clock_ns - (asked + shortest / 2);
  }
  return offset;
}

Words answer_rank_0(Exchange& exchange) {
  const std::uint64_t identity = clock_identity();
  for (int i = 0; i < kQuestions; ++i) {
    exchange.receive(0);
    exchange.send(0, {.clock_ns = trace::now_ns(), .clock_identity = identity});
  }
  return exchange.receive(0);
}

}  // namespace

std::uint64_t draw_communicator_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

Agreement agree_on_origin(Router& router, std::uint32_t rank, std::uint32_t size,
                          Deadline deadline) {
  Exchange exchange(router, deadline);
  if (rank > 0) {
    const Words told = answer_rank_0(exchange);
    return {{told.communicator, told.clock_ns, rank, size}, exchange.take_lost()};
  }
  const std::uint64_t communicator = draw_communicator_number();
  for (std::uint32_t peer = 1; peer < size; ++peer) {
    const std::int64_t ahead_ns = measure_offset(exchange, peer);
    exchange.send(peer, {.clock_ns = ahead_ns, .communicator = communicator});
  }
  return {{communicator, 0, rank, size}, exchange.take_lost()};
}

}  // namespace gradwire::engine
