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

MemoryTransport::MemoryTransport(std::uint32_t me, std::shared_ptr<OutboxMemory> own,
                                 std::shared_ptr<FileDescriptor> wake,
                                 std::vector<MemoryPeer> peers)
    : me_(me),
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
  const std::uint64_t offset =
      bytes.empty() ? 0 : static_cast<std::uint64_t>(bytes.data() - own_.messages().data());
  const Waiting message{tag, offset, bytes.size(), ticket};
  peer.outstanding.push_back(ticket);
  if (!peer.waiting.empty() || !post(peer, rank, message)) peer.waiting.push_back(message);
}

bool MemoryTransport::can_post(const Peer& peer, std::uint32_t rank) const noexcept {
  const OutboxEntry& entry = own_.ring(rank).entries[peer.next_out % OutboxRing::kEntries];
  return entry.posted.load(std::memory_order_seq_cst) == 0;
}

bool MemoryTransport::post(Peer& peer, std::uint32_t rank, const Waiting& message) noexcept {
  if (!can_post(peer, rank)) return false;
  OutboxEntry& entry = own_.ring(rank).entries[peer.next_out++ % OutboxRing::kEntries];
  entry.tag = message.tag;
  entry.offset = message.offset;
  entry.bytes = message.bytes;
  entry.ticket = message.ticket;
  entry.posted.store(1, std::memory_order_seq_cst);
  wake(peer);
  return true;
}

void MemoryTransport::release(const Arrival& arrival) noexcept {
  Peer& peer = peers_[arrival.peer];
  if (peer.failed) return;
  const bool must_wait = !peer.waiting_release.empty();
  if (must_wait || !give_back(peer, arrival.peer, arrival.handle)) {
    peer.waiting_release.push_back(arrival.handle);
  }
}

bool MemoryTransport::can_give_back(const Peer& peer, std::uint32_t rank) const noexcept {
  const auto& place = own_.ring(rank).released[peer.next_released_out % OutboxRing::kEntries];
  return place.load(std::memory_order_seq_cst) == 0;
}

bool MemoryTransport::give_back(Peer& peer, std::uint32_t rank, std::uint64_t ticket) noexcept {
  if (!can_give_back(peer, rank)) return false;
  auto& place = own_.ring(rank).released[peer.next_released_out++ % OutboxRing::kEntries];
  place.store(ticket + 1, std::memory_order_seq_cst);
  wake(peer);
  return true;
}

bool MemoryTransport::progress(Receiver& receiver) noexcept {
  if (armed_) {
    armed_ = false;
    own_.header().asleep.store(0, std::memory_order_relaxed);
    look_at_sockets();
  }
  bool did = false;
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (!connected(rank)) continue;
    did |= reclaim(peer, rank, receiver);
    did |= take(peer, rank, receiver);
    if (!peer.failed) did |= take_signals(peer, rank, receiver);
    if (!peer.failed) did |= report_fault(peer, rank, receiver);
  }
  return did;
}

bool MemoryTransport::reclaim(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept {
  bool did = false;
  OutboxRing& ring = peer.outbox.ring(me_);
  while (true) {
    auto& place = ring.released[peer.next_released_in % OutboxRing::kEntries];
    const std::uint64_t ticket = place.load(std::memory_order_seq_cst);
    if (ticket == 0) break;
    place.store(0, std::memory_order_seq_cst);
    ++peer.next_released_in;
    wake(peer);  // it may wait for a place
    const auto known = std::find(peer.outstanding.begin(), peer.outstanding.end(), ticket - 1);
    if (known == peer.outstanding.end()) continue;  // a peer's invention
    peer.outstanding.erase(known);
    receiver.sent(ticket - 1);
    did = true;
  }
  while (!peer.waiting.empty() && post(peer, rank, peer.waiting.front())) {
    peer.waiting.pop_front();
    did = true;
  }
  while (!peer.waiting_release.empty() && give_back(peer, rank, peer.waiting_release.front())) {
    peer.waiting_release.pop_front();
    did = true;
  }
  return did;
}

bool MemoryTransport::take(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept {
  bool did = false;
  peer.unwanted = false;
  OutboxRing& ring = peer.outbox.ring(me_);
  const std::span<std::byte> messages = peer.outbox.messages();
  while (true) {
    OutboxEntry& entry = ring.entries[peer.next_in % OutboxRing::kEntries];
    if (entry.posted.load(std::memory_order_seq_cst) == 0) break;
    const Tag tag = entry.tag;
    const std::uint64_t offset = entry.offset;
    const std::uint64_t bytes = entry.bytes;
    const std::uint64_t ticket = entry.ticket;
    if (offset > messages.size() || bytes > messages.size() - offset) {
      fail(peer, receiver, {Fault::garbage, rank, rank, "a message outside of its memory"});
      return true;
    }
    if (!receiver.wants(rank, tag)) {
      peer.unwanted = true;
      break;
    }
    ++peer.next_in;
    entry.posted.store(0, std::memory_order_seq_cst);
    wake(peer);  // it may wait for a place
    receiver.arrived({rank, tag, messages.subspan(offset, bytes), ticket});
    did = true;
  }
  return did;
}

void MemoryTransport::signal(std::uint32_t rank, Signal signal) noexcept {
  Peer& peer = peers_[rank];
  OutboxRing& ring = own_.ring(rank);
  if (signal.kind == Signal::Kind::question) {
    ring.questions.store(++peer.asked, std::memory_order_seq_cst);
  } else {
    const std::uint64_t answer = std::uint64_t{peer.questions} << 32 | signal.rank_plus_one;
    ring.answer.store(answer, std::memory_order_seq_cst);
  }
  wake(peer);
}

bool MemoryTransport::has_answered(const Peer& peer) const noexcept {
  const std::uint64_t answer = peer.outbox.ring(me_).answer.load(std::memory_order_seq_cst);
  return peer.answered != peer.asked && answer >> 32 == peer.asked;
}

bool MemoryTransport::take_signals(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept {
  bool did = false;
  const OutboxRing& ring = peer.outbox.ring(me_);
  const std::uint32_t questions = ring.questions.load(std::memory_order_seq_cst);
  if (questions != peer.questions) {
    peer.questions = questions;
    receiver.signalled(rank, {Signal::Kind::question});
    did = true;
  }
  if (has_answered(peer)) {
    peer.answered = peer.asked;
    const std::uint64_t answer = ring.answer.load(std::memory_order_seq_cst);
    receiver.signalled(rank, {Signal::Kind::answer, static_cast<std::uint32_t>(answer)});
    did = true;
  }
  return did;
}

/// What a peer sent before it left is taken first.
bool MemoryTransport::report_fault(Peer& peer, std::uint32_t rank, Receiver& receiver) noexcept {
  const OutboxHeader& header = peer.outbox.header();
  const std::uint32_t aborted = header.aborted.load(std::memory_order_acquire);
  if (aborted != 0) {
    fail(peer, receiver, {Fault::refused, rank, aborted - 1, peer.outbox.abort_reason()});
    return true;
  }
  if (!peer.gone && header.gone.load(std::memory_order_acquire) == 0) return false;
  if (peer.unwanted) return false;
  fail(peer, receiver, {Fault::lost, rank, rank, "its process ended or it closed the connection"});
  return true;
}

void MemoryTransport::fail(Peer& peer, Receiver& receiver, const Failure& failure) noexcept {
  peer.failed = true;
  for (const std::uint64_t ticket : peer.outstanding) receiver.sent(ticket);
  peer.outstanding.clear();
  peer.waiting.clear();
  receiver.failed(failure);
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
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (!connected(rank)) continue;
    const OutboxHeader& header = peer.outbox.header();
    if (header.aborted.load(std::memory_order_seq_cst) != 0) return true;
    const OutboxRing& ring = peer.outbox.ring(me_);
    if (ring.questions.load(std::memory_order_seq_cst) != peer.questions) return true;
    if (has_answered(peer)) return true;
    const auto& released = ring.released[peer.next_released_in % OutboxRing::kEntries];
    if (released.load(std::memory_order_seq_cst) != 0) return true;
    if (!peer.waiting.empty() && can_post(peer, rank)) return true;
    if (!peer.waiting_release.empty() && can_give_back(peer, rank)) return true;
    if (peer.unwanted) continue;  // asked again in the next `progress`, which needs no event
    if (peer.gone || header.gone.load(std::memory_order_seq_cst) != 0) return true;
    const OutboxEntry& next = ring.entries[peer.next_in % OutboxRing::kEntries];
    if (next.posted.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

void MemoryTransport::wake(const Peer& peer) const noexcept {
  if (peer.outbox.header().asleep.load(std::memory_order_seq_cst) == 0) return;
  eventfd_write(peer.link.wake->get(), 1);
}

void MemoryTransport::abort(std::uint32_t culprit, std::string_view reason, Receiver&) noexcept {
  own_.abort(culprit, reason);
  for (const Peer& peer : peers_) {
    if (peer.link.memory) wake(peer);
  }
}

}  // namespace gradwire
