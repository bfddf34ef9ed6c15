#include "transport/router.h"

#include <sys/epoll.h>

#include <algorithm>

namespace gradwire {
namespace {

constexpr std::size_t kMaxQueuedSignals = 64;  // a peer asks once, and waits

/// A peer's text, with '?' for what a terminal or a string of Python would stumble over.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

Router::Router(std::vector<Route> routes, std::uint32_t count)
    : transport_of_(count), failed_(count) {
  for (Route& route : routes) {
    for (const std::uint32_t peer : route.peers) transport_of_[peer] = route.transport.get();
    transports_.push_back(std::move(route.transport));
  }
  if (transports_.size() == 1) return;
  poll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  for (const auto& transport : transports_) {
    epoll_event event{.events = EPOLLIN, .data = {}};
    epoll_ctl(poll_.get(), EPOLL_CTL_ADD, transport->event(), &event);
  }
}

Router::Router(std::unique_ptr<Transport> transport, std::uint32_t count)
    : transport_of_(count, transport.get()), failed_(count) {
  transports_.push_back(std::move(transport));
}

std::span<std::byte> Router::send_memory() noexcept {
  for (const auto& transport : transports_) {
    if (const auto memory = transport->send_memory(); !memory.empty()) return memory;
  }
  return {};
}

void Router::send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
                  std::uint64_t ticket) noexcept {
  if (failed_[peer]) return sent_.push_back(ticket);
  transport_of_[peer]->send(peer, tag, bytes, ticket);
}

void Router::release(const Arrival& arrival) noexcept {
  transport_of_[arrival.peer]->release(arrival);
}

bool Router::progress(Inbox& inbox) noexcept {
  inbox_ = &inbox;
  bool did = !sent_.empty();
  for (const std::uint64_t ticket : sent_) inbox.sent(ticket);
  sent_.clear();
  for (const auto& transport : transports_) did |= transport->progress(*this);
  inbox_ = nullptr;
  return did;
}

int Router::event() const noexcept {
  return transports_.size() == 1 ? transports_[0]->event() : poll_.get();
}

bool Router::arm() noexcept {
  bool idle = sent_.empty();
  for (const auto& transport : transports_) idle &= transport->arm();
  return idle;
}

void Router::ask(std::uint32_t peer) noexcept { signal(peer, {.kind = Signal::Kind::question}); }

void Router::abort(std::uint32_t culprit, std::string_view reason) noexcept {
  if (aborted_) return;
  aborted_ = true;
  for (const auto& transport : transports_) {
    transport->abort(culprit, reason.substr(0, kMaxReason), *this);
  }
}

/// One that asks and never listens must not fill our memory.
void Router::signal(std::uint32_t peer, Signal signal) noexcept {
  Transport& transport = *transport_of_[peer];
  if (failed_[peer] || transport.queued_signals(peer) >= kMaxQueuedSignals) return;
  transport.signal(peer, signal);
}

// ---------------------------------------------------------------------------------------------
// What transports report

bool Router::wants(std::uint32_t peer, Tag tag) noexcept { return inbox_->wants(peer, tag); }
void Router::arrived(const Arrival& arrival) noexcept { inbox_->arrived(arrival); }

void Router::sent(std::uint64_t ticket) noexcept {
  if (inbox_ == nullptr) return sent_.push_back(ticket);  // by `abort`
  inbox_->sent(ticket);
}

void Router::failed(const Failure& failure) noexcept {
  failed_[failure.peer] = true;
  Failure checked = failure;  // a peer that gives up may say anything
  checked.culprit = std::min<std::uint32_t>(failure.culprit, failed_.size() - 1);
  checked.reason = printable(failure.reason);
  inbox_->failed(checked);
}

void Router::signalled(std::uint32_t peer, Signal said) noexcept {
  if (said.kind == Signal::Kind::question) {
    const auto rank = inbox_->waits_for();
    signal(peer, {Signal::Kind::answer, rank ? *rank + 1 : 0});
  } else if (said.rank_plus_one > 0) {
    inbox_->answered(peer, said.rank_plus_one - 1);
  } else {
    inbox_->answered(peer, std::nullopt);
  }
}

}  // namespace gradwire
