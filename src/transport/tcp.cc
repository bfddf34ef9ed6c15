#include "transport/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/meeting.h"
#include "transport/rank_or_none.h"
#include "transport/tcp_connection.h"

namespace gradwire {
namespace {

using Streams = std::vector<std::unique_ptr<Stream>>;

/// Two connections with every peer: messages go over one of them, and wait there when they are not
/// wanted yet. Questions, answers and aborts go over the other, past them.
class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, Streams messages, Streams talk)
      : count_(options.count),
        connections_(2 * options.count),
        watched_(2 * options.count),
        poll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (std::size_t i = 0; i < options.peers.size(); ++i) {
      const std::uint32_t peer = options.peers[i];
      add(peer, peer, std::move(messages[i]), options.max_message_bytes);
      add(talk_with(peer), peer, std::move(talk[i]), 0);
    }
  }

  std::string_view name() const noexcept override { return "tcp"; }
  std::span<std::byte> send_memory() noexcept override { return {}; }

  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override {
    eager_ = true;
    if (connections_[peer]) {
      connections_[peer]->enqueue(WireHeader::message, tag, bytes, ticket);
    } else {
      orphans_.push_back(ticket);
    }
  }

  void release(const Arrival& arrival) noexcept override { buffers_.release(arrival.handle); }

  bool progress(Inbox& inbox) noexcept override {
    bool did = !orphans_.empty();
    eager_ = false;
    for (const std::uint64_t ticket : orphans_) inbox.sent(ticket);
    orphans_.clear();
    epoll_event events[64];
    const int count = epoll_wait(poll_.get(), events, 64, 0);
    for (int i = 0; i < count; ++i) {
      const std::uint32_t place = events[i].data.u32;
      if ((events[i].events & ~EPOLLOUT) != 0 && connections_[place]) did |= read(place, inbox);
    }
    for (std::uint32_t place = 0; place < connections_.size(); ++place) {
      if (connections_[place]) did |= serve(place, inbox);
    }
    return did;
  }

  int event() const noexcept override { return poll_.get(); }
  bool arm() noexcept override { return !eager_; }

  void ask(std::uint32_t peer) noexcept override { say(peer, kQuestion); }

  /// On both connections: the one may be full, and the end of the other may be seen first.
  void abort(std::uint32_t culprit, std::string_view reason) noexcept override {
    if (aborted_) return;
    aborted_ = true;
    Talk deaf(*this, nullptr);
    for (const auto& connection : connections_) {
      if (!connection) continue;
      connection->enqueue(WireHeader::abort, culprit,
                          std::as_bytes(std::span(reason.substr(0, kMaxReason))), 0);
      connection->write(deaf);
    }
  }

 private:
  // Tags on connections for talk: a question, or an answer with whom the rank waits for.
  static constexpr Tag kQuestion = 0;
  static constexpr Tag kFirstAnswer = 1;
  static constexpr std::size_t kMostUnsaid = 64;  // a peer asks once, and waits

  /// What peers say on connections for talk, to be heard by an inbox, if there is one.
  class Talk final : public Inbox {
   public:
    Talk(TcpTransport& transport, Inbox* inbox) : transport_(transport), inbox_(inbox) {}
    bool wants(std::uint32_t, Tag) noexcept override { return true; }
    void arrived(const Arrival& arrival) noexcept override {
      transport_.release(arrival);
      if (inbox_ == nullptr) return;
      if (arrival.tag == kQuestion) {
        transport_.say(arrival.peer, kFirstAnswer + pack_rank(inbox_->waits_for()));
      } else {
        const auto packed = static_cast<std::uint32_t>(arrival.tag - kFirstAnswer);
        inbox_->answered(arrival.peer, unpack_rank(packed));
      }
    }
    void sent(std::uint64_t) noexcept override {}
    void failed(const Failure&) noexcept override {}

   private:
    TcpTransport& transport_;
    Inbox* inbox_;
  };

  std::uint32_t talk_with(std::uint32_t peer) const { return count_ + peer; }
  bool is_talk(std::uint32_t place) const { return place >= count_; }

  void add(std::uint32_t place, std::uint32_t peer, std::unique_ptr<Stream> stream,
           std::size_t max_message_bytes) {
    const int yes = 1;
    setsockopt(stream->descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    connections_[place] =
        std::make_unique<TcpConnection>(std::move(stream), peer, max_message_bytes, buffers_);
    watch(place);
  }

  void say(std::uint32_t peer, Tag word) noexcept {
    eager_ = true;
    const auto& connection = connections_[talk_with(peer)];
    // One that asks and never listens must not fill our memory.
    if (!connection || connection->queued() >= kMostUnsaid) return;
    connection->enqueue(WireHeader::message, word, {}, 0);
  }

  /// What needs no event: queued messages, connections whose next message may be wanted by now.
  bool serve(std::uint32_t place, Inbox& inbox) noexcept {
    TcpConnection& connection = *connections_[place];
    bool did = false;
    if (connection.wants_to_write()) {
      Talk talk(*this, &inbox);
      did |= connection.write(is_talk(place) ? talk : inbox);
    }
    if (connection.paused() || connection.has_buffered()) did |= read(place, inbox);
    if (connections_[place]) watch(place);
    return did;
  }

  bool read(std::uint32_t place, Inbox& inbox) noexcept {
    Talk talk(*this, &inbox);
    const bool did = connections_[place]->read(is_talk(place) ? talk : inbox);
    if (connections_[place]->failure() == nullptr) return did;
    const Failure failure = *connections_[place]->failure();
    if (is_talk(place) && failure.fault == Fault::lost) {  // messages tell whether that matters
      connections_[place].reset();
      return did;
    }
    inbox.failed(failure);  // who aborts now tells this peer, too, if it still listens
    if (connections_[failure.peer]) connections_[failure.peer]->drop_outgoing(inbox);
    connections_[failure.peer].reset();
    connections_[talk_with(failure.peer)].reset();
    return true;
  }

  /// Asks the system for the events that this connection can use now.
  void watch(std::uint32_t place) noexcept {
    const TcpConnection& connection = *connections_[place];
    const std::uint32_t wanted =
        (connection.paused() ? 0u : EPOLLIN) | (connection.wants_to_write() ? EPOLLOUT : 0u);
    if (wanted == watched_[place]) return;
    epoll_event event{.events = wanted, .data = {.u32 = place}};
    const int change = watched_[place] == 0 ? EPOLL_CTL_ADD
                       : wanted == 0        ? EPOLL_CTL_DEL  // else its end would be an event
                                            : EPOLL_CTL_MOD;
    epoll_ctl(poll_.get(), change, connection.descriptor(), &event);
    watched_[place] = wanted;
  }

  const std::uint32_t count_;
  MessageBuffers buffers_;
  std::vector<std::unique_ptr<TcpConnection>> connections_;  // by rank, then those for talk
  std::vector<std::uint32_t> watched_;                       // events of each
  FileDescriptor poll_;
  std::vector<std::uint64_t> orphans_;  // tickets of messages to peers that are lost
  bool eager_ = false;                  // something was queued since the last progress
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Transport> connect_tcp(const TcpOptions& options, TcpListener listener) {
  const auto call = [&](std::uint32_t rank, std::size_t failures) {
    // Begins with another address after a failure: what answers at one may not be the peer.
    const std::vector<std::string>& addresses = options.addresses[rank];
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const std::string& address = addresses[(failures + i) % addresses.size()];
      if (FileDescriptor socket = connect_tcp_address(address, options.deadline)) return socket;
    }
    return FileDescriptor();
  };
  auto lines = meet({.side = {options.job, Purpose::tcp, options.me},
                     .peers = options.peers,
                     .listeners = listener.descriptors(),
                     .call = call,
                     .deadline = options.deadline,
                     .lines = 2});
  const auto streams = [&](std::vector<Met> met) {
    if (options.tls) {
      return encrypt(options.tls, options.me, options.peers, std::move(met), options.deadline);
    }
    Streams plain;
    for (Met& each : met) plain.push_back(plain_stream(std::move(each.socket)));
    return plain;
  };
  Streams messages = streams(std::move(lines[0]));
  Streams talk = streams(std::move(lines[1]));
  return std::make_unique<TcpTransport>(options, std::move(messages), std::move(talk));
}

}  // namespace gradwire
