// Every rank has all values: who sets one sends it to all others. Rank 0 has all counters.
#include <fmt/format.h>
#include <poll.h>

#include <cstdlib>
#include <list>
#include <map>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/job.h"
#include "rendezvous/store.h"
#include "transport/mpi_world.h"
#include "transport/router.h"
#include "transport/transport_kinds.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;

// Messages are a key, '\0' and a text.
constexpr Tag kSet = 0;  // of a value
constexpr Tag kAdd = 1;  // to a counter, for rank 0
constexpr Tag kSum = 2;  // what became of it

class MpiStore final : public Store, private Inbox {
 public:
  explicit MpiStore(Deadline deadline) : deadline_(deadline) {
    const MpiWorld world;
    me_ = world.rank();
    for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
      if (rank != world.rank()) peers_.push_back(rank);
    }
    router_ = std::make_unique<Router>(kMpi.connect({.job = {},
                                                     .me = world.rank(),
                                                     .count = world.size(),
                                                     .peers = peers_,
                                                     .addresses = {},
                                                     .message_bytes = kMaxValueBytes,
                                                     .deadline = deadline},
                                                    {}),
                                       world.size());
  }

  ~MpiStore() override {
    wait_until(deadline_, [&] { return unsent_ == 0; });
  }

  void set(const std::string& key, const std::string& value, Deadline) override {
    values_[key] = value;
    for (const std::uint32_t peer : peers_) send(peer, kSet, key, value);
    router_->progress(*this);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    if (!wait_until(deadline, [&] {
          keep_waiting();
          return values_.contains(key);
        })) {
      throw Error(ErrorCode::timeout,
                  fmt::format("no rank of MPI has set '{}' before the deadline: do all of them "
                              "connect?",
                              key));
    }
    return values_[key];
  }

  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override {
    if (me_ == 0) return counters_[key] += amount;
    sums_.erase(key);
    send(0, kAdd, key, std::to_string(amount));
    if (!wait_until(deadline, [&] {
          keep_waiting();
          return sums_.contains(key);
        })) {
      throw Error(ErrorCode::timeout,
                  fmt::format("rank 0 of MPI has not counted '{}' before the deadline: does it "
                              "connect?",
                              key));
    }
    return sums_[key];
  }

 private:
  void send(std::uint32_t peer, Tag tag, const std::string& key, const std::string& text) {
    const std::string& message = messages_.emplace_back(key + '\0' + text);
    ++unsent_;
    router_->send(peer, tag, std::as_bytes(std::span(message)), 0);
  }

  template <class Condition>
  bool wait_until(Deadline deadline, Condition condition) {
    while (!condition()) {
      if (router_->progress(*this)) continue;
      if (Clock::now() >= deadline) return false;
      pollfd polled{router_->event(), POLLIN, 0};
      if (router_->arm()) poll(&polled, 1, 100);
    }
    return true;
  }

  bool wants(std::uint32_t, Tag) noexcept override { return true; }
  void arrived(const Arrival& arrival) noexcept override {
    const std::string text(reinterpret_cast<const char*>(arrival.bytes.data()),
                           arrival.bytes.size());
    router_->release(arrival);
    const std::size_t end = text.find('\0');
    if (end == std::string::npos) return;
    const std::string key = text.substr(0, end);
    const std::string rest = text.substr(end + 1);
    if (arrival.tag == kSet) values_[key] = rest;
    if (arrival.tag == kSum) sums_[key] = std::strtoll(rest.c_str(), nullptr, 10);
    if (arrival.tag == kAdd) {
      const std::int64_t sum = counters_[key] += std::strtoll(rest.c_str(), nullptr, 10);
      send(arrival.peer, kSum, key, std::to_string(sum));
    }
  }
  void sent(std::uint64_t) noexcept override { --unsent_; }
  void failed(const Failure&) noexcept override {}  // others may have set what is asked for

  const Deadline deadline_;
  std::uint32_t me_ = 0;
  std::vector<std::uint32_t> peers_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;  // of rank 0
  std::map<std::string, std::int64_t> sums_;      // as rank 0 said
  std::list<std::string> messages_;               // where they are sent from
  std::size_t unsent_ = 0;
  std::unique_ptr<Router> router_;
};

}  // namespace

std::unique_ptr<Store> open_mpi_store(Deadline deadline) {
  return std::make_unique<MpiStore>(deadline);
}

}  // namespace gradwire
