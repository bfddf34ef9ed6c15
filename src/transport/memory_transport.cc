#include "transport/memory_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <system_error>

namespace gradwire {
namespace {

constexpr std::uint32_t kOwnEvent = ~std::uint32_t{0};

void watch(int poll, int descriptor, std::uint32_t events, std::uint32_t name) {
  epoll_event event{.events = events, .data = {.u32 = name}};
  if (epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

}  // namespace

MemoryTransport::MemoryTransport(std::string_view name, std::uint32_t me,
                                 std::shared_ptr<OutboxMemory> own,
                                 std::shared_ptr<FileDescriptor> wake,
                                 std::vector<MemoryPeer> peers)
    : name_(name),
      me_(me),
      own_memory_(std::move(own)),
      own_(own_memory_->bytes(), peers.size()),
      wake_(std::move(wake)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      peers_(peers.size()) {
  watch(poll_.get(), wake_->get(), EPOLLIN, kOwnEvent);
  for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
    peers_[rank].link = std::move(peers[rank]);
    if (!peers_[rank].link.memory) continue;
    peers_[rank].outbox = Outbox(peers_[rank].link.memory->bytes(), peers_.size());
    const int life = peers_[rank].link.life.get();
    if (life >= 0) watch(poll_.get(), life, EPOLLIN | EPOLLRDHUP, rank);
  }
}

MemoryTransport::~MemoryTransport() {
  own_.header().gone.store(1, std::memory_order_seq_cst);
  for (const Peer& peer : peers_) {
    if (peer.link.memory) wake(peer);
  }
}

void MemoryTransport::send(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes,
                           std::uint64_t ticket) noexcept {
  Peer& peer = peers_[rank];
  if (peer.dead) {
    orphans_.push_back(ticket);
    return;
  }
  const std::uint64_t offset =
      bytes.empty() ? 0 : static_cast<std::uint64_t>(bytes.data() - own_.messages().data());
  const Waiting message{tag, offset, bytes.size(), ticket};
  if (!peer.waiting.empty() || !post(peer, rank, message)) peer.waiting.push_back(message);
}

bool MemoryTransport::post(Peer& peer, std::uint32_t rank, const Waiting& message) noexcept {
  const std::uint32_t index = peer.next_out % OutboxRing::kEntries;
  OutboxEntry& entry = own_.ring(rank).entries[index];
  if (peer.next_out - peer.oldest_out == OutboxRing::kEntries) return false;
  entry.tag = message.tag;
  entry.offset = message.offset;
  entry.bytes = message.bytes;
  peer.tickets[index] = message.ticket;
  ++peer.next_out;
  entry.state.store(OutboxEntry::posted, std::memory_order_seq_cst);
  wake(peer);
  return true;
}

void MemoryTransport::release(const Arrival& arrival) noexcept {
  Peer& peer = peers_[arrival.peer];
  if (peer.dead) return;
  peer.outbox.ring(me_).entries[arrival.handle].state.store(OutboxEntry::released,
                                                            std::memory_order_seq_cst);
  wake(peer);
}

bool MemoryTransport::progress(Inbox& inbox) noexcept {
  if (armed_) {
    armed_ = false;
    own_.header().asleep.store(0, std::memory_order_relaxed);
    look_at_sockets();
  }
  bool did = !orphans_.empty();
  for (const std::uint64_t ticket : orphans_) inbox.sent(ticket);
  orphans_.clear();
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (!connected(rank)) continue;
    did |= reclaim(peer, rank, inbox);
    did |= take(peer, rank, inbox);
    if (!peer.dead) did |= report_fault(peer, rank, inbox);
  }
  return did;
}

/// Entries come back in any order; those behind the oldest are free once it is.
bool MemoryTransport::reclaim(Peer& peer, std::uint32_t rank, Inbox& inbox) noexcept {
  bool did = false;
  OutboxRing& ring = own_.ring(rank);
  for (std::uint32_t i = peer.oldest_out; i != peer.next_out; ++i) {
    OutboxEntry& entry = ring.entries[i % OutboxRing::kEntries];
    if (entry.state.load(std::memory_order_acquire) == OutboxEntry::released) {
      entry.state.store(OutboxEntry::free, std::memory_order_relaxed);
      inbox.sent(peer.tickets[i % OutboxRing::kEntries]);
      did = true;
    }
    const bool free = entry.state.load(std::memory_order_relaxed) == OutboxEntry::free;
    if (free && i == peer.oldest_out) ++peer.oldest_out;
  }
  while (!peer.waiting.empty() && post(peer, rank, peer.waiting.front())) {
    peer.waiting.pop_front();
    did = true;
  }
  return did;
}

bool MemoryTransport::take(Peer& peer, std::uint32_t rank, Inbox& inbox) noexcept {
  bool did = false;
  peer.refused = false;
  OutboxRing& ring = peer.outbox.ring(me_);
  const std::span<std::byte> messages = peer.outbox.messages();
  while (true) {
    const std::uint32_t index = peer.next_in % OutboxRing::kEntries;
    OutboxEntry& entry = ring.entries[index];
    if (entry.state.load(std::memory_order_acquire) != OutboxEntry::posted) break;
    const std::uint64_t offset = entry.offset;
    const std::uint64_t bytes = entry.bytes;
    if (offset > messages.size() || bytes > messages.size() - offset) {
      fail(peer, rank, inbox, {Fault::garbage, rank, rank, "a message outside of its memory"});
      return true;
    }
    if (!inbox.wants(rank, entry.tag)) {
      peer.refused = true;
      break;
    }
    ++peer.next_in;
    entry.state.store(OutboxEntry::taken, std::memory_order_relaxed);
    inbox.arrived({rank, entry.tag, messages.subspan(offset, bytes), index});
    did = true;
  }
  return did;
}

/// What a peer sent before it left is taken first.
bool MemoryTransport::report_fault(Peer& peer, std::uint32_t rank, Inbox& inbox) noexcept {
  const OutboxHeader& header = peer.outbox.header();
  const std::uint32_t aborted = header.aborted.load(std::memory_order_acquire);
  if (aborted != 0) {
    const std::uint32_t culprit = std::min<std::uint32_t>(aborted - 1, peers_.size() - 1);
    fail(peer, rank, inbox, {Fault::refused, rank, culprit, peer.outbox.abort_reason()});
    return true;
  }
  if (!peer.gone && header.gone.load(std::memory_order_acquire) == 0) return false;
  if (peer.refused) return false;
  fail(peer, rank, inbox,
       {Fault::lost, rank, rank, "its process ended or it closed the connection"});
  return true;
}

void MemoryTransport::fail(Peer& peer, std::uint32_t rank, Inbox& inbox,
                           const Failure& failure) noexcept {
  peer.dead = true;
  const OutboxRing& ring = own_.ring(rank);
  for (std::uint32_t i = peer.oldest_out; i != peer.next_out; ++i) {
    const std::uint32_t index = i % OutboxRing::kEntries;
    const bool sent =
        ring.entries[index].state.load(std::memory_order_relaxed) == OutboxEntry::free;
    if (!sent) inbox.sent(peer.tickets[index]);
  }
  for (const Waiting& message : peer.waiting) inbox.sent(message.ticket);
  peer.waiting.clear();
  inbox.failed(failure);
}

void MemoryTransport::look_at_sockets() noexcept {
  epoll_event events[16];
  const int count = epoll_wait(poll_.get(), events, 16, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t name = events[i].data.u32;
    if (name == kOwnEvent) {
      eventfd_t ignored;
      eventfd_read(wake_->get(), &ignored);
      continue;
    }
    // Nothing is ever sent on this socket: anything that happens to it is its end.
    peers_[name].gone = true;
    epoll_ctl(poll_.get(), EPOLL_CTL_DEL, peers_[name].link.life.get(), nullptr);
  }
}

bool MemoryTransport::arm() noexcept {
  armed_ = true;
  own_.header().asleep.store(1, std::memory_order_seq_cst);
  return !anything_to_do();
}

bool MemoryTransport::anything_to_do() const noexcept {
  if (!orphans_.empty()) return true;
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (!connected(rank)) continue;
    const OutboxHeader& header = peer.outbox.header();
    if (header.aborted.load(std::memory_order_seq_cst) != 0) return true;
    for (std::uint32_t i = peer.oldest_out; i != peer.next_out; ++i) {
      const OutboxEntry& sent = own_.ring(rank).entries[i % OutboxRing::kEntries];
      if (sent.state.load(std::memory_order_seq_cst) == OutboxEntry::released) return true;
    }
    if (peer.refused) continue;  // asked again in the next `progress`, which needs no event
    if (peer.gone || header.gone.load(std::memory_order_seq_cst) != 0) return true;
    const OutboxEntry& next = peer.outbox.ring(me_).entries[peer.next_in % OutboxRing::kEntries];
    if (next.state.load(std::memory_order_seq_cst) == OutboxEntry::posted) return true;
  }
  return false;
}

void MemoryTransport::wake(const Peer& peer) const noexcept {
  if (peer.outbox.header().asleep.load(std::memory_order_seq_cst) == 0) return;
  eventfd_write(peer.link.wake->get(), 1);
}

void MemoryTransport::abort(std::uint32_t culprit, std::string_view reason) noexcept {
  own_.abort(culprit, reason);
  for (const Peer& peer : peers_) {
    if (peer.link.memory) wake(peer);
  }
}

}  // namespace gradwire
