// Every rank has all values: who sets one sends it to all others.
#include <fmt/format.h>
#include <poll.h>

#include <list>
#include <map>

#include "gradwire/error.h"
#include "transport/mpi_transport.h"
#include "transport/mpi_world.h"
#include "transport/store.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;

class MpiStore final : public Store, private Inbox {
 public:
  explicit MpiStore(Deadline deadline) : deadline_(deadline) {
    const MpiWorld world;
    for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
      if (rank != world.rank()) peers_.push_back(rank);
    }
    transport_ = connect_mpi({.me = world.rank(),
                              .count = world.size(),
                              .peers = peers_,
                              .max_message_bytes = kMaxValueBytes,
                              .deadline = deadline});
  }

  ~MpiStore() override {
    wait_until(deadline_, [&] { return unsent_ == 0; });
  }

  void set(const std::string& key, const std::string& value, Deadline) override {
    values_[key] = value;
    const std::string& text = messages_.emplace_back(key + '\0' + value);
    for (const std::uint32_t peer : peers_) {
      ++unsent_;
      transport_->send(peer, 0, std::as_bytes(std::span(text)), 0);
    }
    transport_->progress(*this);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    if (!wait_until(deadline, [&] { return values_.contains(key); })) {
      throw Error(ErrorCode::timeout,
                  fmt::format("no rank of MPI has set '{}' before the deadline: do all of them "
                              "connect?",
                              key));
    }
    return values_[key];
  }

 private:
  template <class Condition>
  bool wait_until(Deadline deadline, Condition condition) {
    while (!condition()) {
      if (transport_->progress(*this)) continue;
      if (Clock::now() >= deadline) return false;
      pollfd polled{transport_->event(), POLLIN, 0};
      if (transport_->arm()) poll(&polled, 1, 1000);
    }
    return true;
  }

  bool wants(std::uint32_t, Tag) noexcept override { return true; }
  void arrived(const Arrival& arrival) noexcept override {
    const std::string text(reinterpret_cast<const char*>(arrival.bytes.data()),
                           arrival.bytes.size());
    const std::size_t end = text.find('\0');
    if (end != std::string::npos) values_[text.substr(0, end)] = text.substr(end + 1);
    transport_->release(arrival);
  }
  void sent(std::uint64_t) noexcept override { --unsent_; }
  void failed(const Failure&) noexcept override {}  // others may have set what is asked for

  const Deadline deadline_;
  std::vector<std::uint32_t> peers_;
  std::map<std::string, std::string> values_;
  std::list<std::string> messages_;  // where they are sent from
  std::size_t unsent_ = 0;
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<Store> open_mpi_store(Deadline deadline) {
  return std::make_unique<MpiStore>(deadline);
}

}  // namespace gradwire
