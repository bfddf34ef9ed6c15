// One rank's way to all its peers: each is reached by one transport.
//
// What does not depend on the transport is written here, once: questions and answers, aborts, and
// what becomes of messages to a peer that is lost. Threads and failure are those of transport.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/file_descriptor.h"
#include "transport/transport.h"

namespace gradwire {

/// Where a router reports to, from within `progress`.
class Inbox : public Receiver {
 public:
  /// For a peer that asks: the rank that this one waits for, to send or to take a message, if any.
  virtual std::optional<std::uint32_t> waits_for() noexcept { return std::nullopt; }
  /// What a peer said that was asked.
  virtual void answered(std::uint32_t /*peer*/,
                        std::optional<std::uint32_t> /*waits_for*/) noexcept {}
};

class Router final : private Receiver {
 public:
  /// A transport and the peers that it connects with.
  struct Route {
    std::unique_ptr<Transport> transport;
    std::vector<std::uint32_t> peers;
  };

  /// Every rank but this one, of `count`, is a peer of one route. At most one transport has send
  /// memory.
  Router(std::vector<Route> routes, std::uint32_t count);
  /// One transport reaches all peers.
  Router(std::unique_ptr<Transport> transport, std::uint32_t count);

  /// As in `Transport`.
  std::span<std::byte> send_memory() noexcept;
  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept;
  void release(const Arrival& arrival) noexcept;
  bool progress(Inbox& inbox) noexcept;
  int event() const noexcept;
  bool arm() noexcept;

  /// Asks a peer whom it waits for. Question and answer go past all messages, and a peer's
  /// `progress` answers by itself: one that says nothing is stopped or cut off.
  void ask(std::uint32_t peer) noexcept;

  /// Tells all peers, once, that this rank gives up, and that `culprit` is to blame: as well as it
  /// can, without waiting. A reason beyond `kMaxReason` is cut.
  void abort(std::uint32_t culprit, std::string_view reason) noexcept;

 private:
  void signal(std::uint32_t peer, Signal signal) noexcept;

  // Receiver
  bool wants(std::uint32_t peer, Tag tag) noexcept override;
  void arrived(const Arrival& arrival) noexcept override;
  void sent(std::uint64_t ticket) noexcept override;
  void failed(const Failure& failure) noexcept override;
  void signalled(std::uint32_t peer, Signal signal) noexcept override;

  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Transport*> transport_of_;  // by rank; null: this one
  std::vector<bool> failed_;              // by rank
  std::vector<std::uint64_t> sent_;       // tickets to report in the next `progress`
  FileDescriptor poll_;                   // epoll: the events of several transports
  Inbox* inbox_ = nullptr;                // during `progress`
  bool aborted_ = false;
};

}  // namespace gradwire
