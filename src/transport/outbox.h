// What one rank shares with the peers that can read its memory: rings that say which messages are
// there for whom, the messages themselves, and whether the rank sleeps or has given up.
//
// Each outbox is written by its owner; a peer reads, and marks what it has read. All fields that
// two ranks touch are lock-free atomics, so that the outbox may lie in memory that two processes
// map at different addresses.
//
// A peer takes an entry out of its ring as soon as it sees it, and gives the message's bytes back
// later, in a ring of its own outbox. So a message that is read slowly never keeps others from
// being announced: with a ring that holds its entries until their bytes are free, lanes could wait
// for one another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "transport/transport.h"

namespace gradwire {

/// One message in a ring.
struct OutboxEntry {
  /// 1: the peer may read the entry, 0: the owner may write it. Sequentially consistent, see
  /// `asleep`.
  std::atomic<std::uint64_t> posted{0};
  std::uint64_t tag = 0;
  std::uint64_t offset = 0;  ///< in the outbox's messages
  std::uint64_t bytes = 0;
  std::uint64_t ticket = 0;  ///< the owner's; comes back when the bytes are free
};

/// From the owner to one peer. Both go through both rings in turn; each keeps its own position.
struct OutboxRing {
  static constexpr std::size_t kEntries = 64;
  alignas(64) OutboxEntry entries[kEntries];
  /// Tickets of the peer's messages that the owner has read, plus one; 0: the owner may write it.
  alignas(64) std::atomic<std::uint64_t> released[kEntries];
  /// How often the owner has asked the peer.
  alignas(64) std::atomic<std::uint32_t> questions{0};
  /// The number of the peer's question, and in the lower half the rank that the owner waits for.
  std::atomic<std::uint64_t> answer{0};
};

struct OutboxHeader {
  /// Set by the owner before it sleeps; peers that see it write to its event. This flag and
  /// both rings are sequentially consistent: either the owner, before it sleeps, sees what a
  /// peer did, or the peer sees the flag.
  alignas(64) std::atomic<std::uint32_t> asleep{0};
  /// 1 + the culprit's rank, once `reason` is written. Release by the owner, acquire by peers.
  alignas(64) std::atomic<std::uint32_t> aborted{0};
  /// Set when an owner in the same process is gone.
  std::atomic<std::uint32_t> gone{0};
  char reason[kMaxReason] = {};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A view of an outbox: header, one ring per rank, then the messages.
class Outbox {
 public:
  Outbox() = default;
  /// `memory` is `size(ranks, message_bytes)` long, aligned to a page, and lives elsewhere.
  Outbox(std::span<std::byte> memory, std::size_t ranks) : memory_(memory), ranks_(ranks) {}

  static constexpr std::size_t size(std::size_t ranks, std::size_t message_bytes) {
    return messages_at(ranks) + message_bytes;
  }

  /// Makes header and rings in zeroed memory. By the owner, before any peer looks.
  void create() {
    new (memory_.data()) OutboxHeader;
    for (std::size_t i = 0; i < ranks_; ++i) new (&ring(i)) OutboxRing;
  }

  OutboxHeader& header() const { return *reinterpret_cast<OutboxHeader*>(memory_.data()); }
  OutboxRing& ring(std::size_t rank) const {
    return reinterpret_cast<OutboxRing*>(memory_.data() + sizeof(OutboxHeader))[rank];
  }
  std::span<std::byte> messages() const { return memory_.subspan(messages_at(ranks_)); }

  /// Once, with at most `kMaxReason` bytes.
  void abort(std::uint32_t culprit, std::string_view reason) const {
    std::memcpy(header().reason, reason.data(), reason.size());
    header().aborted.store(culprit + 1, std::memory_order_seq_cst);
  }
  std::string abort_reason() const {  // the peer may be malicious: no end is trusted
    return {header().reason, strnlen(header().reason, kMaxReason)};
  }

 private:
  static constexpr std::size_t messages_at(std::size_t ranks) {
    constexpr std::size_t kPage = 4096;
    const std::size_t end = sizeof(OutboxHeader) + ranks * sizeof(OutboxRing);
    return (end + kPage - 1) / kPage * kPage;
  }

  std::span<std::byte> memory_;
  std::size_t ranks_ = 0;
};

}  // namespace gradwire
