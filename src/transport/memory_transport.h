// Ranks that read one another's memory: threads of a process (`inproc`), processes of a host
// (`shm`).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/file_descriptor.h"
#include "transport/outbox.h"
#include "transport/transport.h"

namespace gradwire {

/// Keeps an outbox's memory alive, or mapped.
class OutboxMemory {
 public:
  virtual ~OutboxMemory() = default;
  virtual std::span<std::byte> bytes() const noexcept = 0;
};

/// One peer, as its connection left it.
struct MemoryPeer {
  std::shared_ptr<OutboxMemory> memory;  ///< The peer's outbox.
  std::shared_ptr<FileDescriptor> wake;  ///< The peer's event: who writes to it wakes the peer.
  FileDescriptor life;  ///< A socket that closes when its process ends; none within a process.
};

class MemoryTransport final : public Transport {
 public:
  /// `peers` is indexed by rank; an entry without memory is not connected. `own` has been created.
  MemoryTransport(std::uint32_t me, std::shared_ptr<OutboxMemory> own,
                  std::shared_ptr<FileDescriptor> wake, std::vector<MemoryPeer> peers);
  ~MemoryTransport() override;

  std::span<std::byte> send_memory() noexcept override { return own_.messages(); }
  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override;
  void release(const Arrival& arrival) noexcept override;
  bool progress(Receiver& receiver) noexcept override;
  int event() const noexcept override { return poll_.get(); }
  bool arm() noexcept override;
  void signal(std::uint32_t peer, Signal signal) noexcept override;
  void abort(std::uint32_t culprit, std::string_view reason, Receiver& receiver) noexcept override;

 private:
  struct Waiting {
    Tag tag;
    std::uint64_t offset, bytes, ticket;
  };
  struct Peer {
    MemoryPeer link;
    Outbox outbox;
    std::uint32_t next_in = 0;           // the entry of its ring for us that comes next
    std::uint32_t next_out = 0;          // the entry of our ring for it that we write next
    std::uint32_t next_released_in = 0;  // the same for what is given back
    std::uint32_t next_released_out = 0;
    std::deque<Waiting> waiting;                // for a free entry
    std::deque<std::uint64_t> waiting_release;  // tickets, likewise
    std::vector<std::uint64_t> outstanding;     // tickets of messages it has not given back
    std::uint32_t asked = 0;                    // questions of ours
    std::uint32_t answered = 0;                 // the last of them that it answered
    std::uint32_t questions = 0;                // of its own that we have seen
    bool gone = false;
    bool failed = false;    // reported
    bool unwanted = false;  // the receiver did not want its next message
  };

  bool can_post(const Peer& peer, std::uint32_t rank) const noexcept;
  bool post(Peer& peer, std::uint32_t rank, const Waiting& message) noexcept;
  bool can_give_back(const Peer& peer, std::uint32_t rank) const noexcept;
  bool give_back(Peer& peer, std::uint32_t rank, std::uint64_t ticket) noexcept;
  bool take(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept;
  bool reclaim(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept;
  bool has_answered(const Peer& peer) const noexcept;
  bool take_signals(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept;
  bool report_fault(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept;
  void look_at_sockets() noexcept;
  bool anything_to_do() const noexcept;
  void wake(const Peer& peer) const noexcept;
  void fail(Peer& peer, Receiver& receiver, const Failure& failure) noexcept;
  bool connected(std::uint32_t rank) const noexcept {
    return peers_[rank].link.memory != nullptr && !peers_[rank].failed;
  }

  std::uint32_t me_;
  std::shared_ptr<OutboxMemory> own_memory_;
  Outbox own_;
  std::shared_ptr<FileDescriptor> wake_;
  FileDescriptor poll_;  // epoll: our event and the peers' sockets
  std::vector<Peer> peers_;
  bool armed_ = false;
};

}  // namespace gradwire
