// `tcp`: ranks on different hosts, two connections per pair: for messages, and for signals.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/mesh.h"
#include "transport/tcp_connection.h"
#include "transport/transport_kinds.h"

namespace gradwire {
namespace {

using Streams = std::vector<std::unique_ptr<Stream>>;

/// Signals travel as empty messages, whose tags are 0 for a question and 1 + what it says for an
/// answer.
constexpr Tag tag_of(Signal signal) {
  return signal.kind == Signal::Kind::question ? 0 : Tag{1} + signal.rank_plus_one;
}
constexpr Signal signal_of(Tag tag) {
  if (tag == 0) return {Signal::Kind::question};
  return {Signal::Kind::answer, static_cast<std::uint32_t>(tag - 1)};
}

/// Two connections with every peer: messages go over one of them, and wait there when they are not
/// wanted yet. Signals go over the other, past them, and aborts over both.
class TcpTransport final : public Transport {
 public:
  TcpTransport(const TransportOptions& options, Streams messages, Streams signals)
      : count_(options.count),
        connections_(2 * options.count),
        watched_(2 * options.count),
        poll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (std::size_t i = 0; i < options.peers.size(); ++i) {
      const std::uint32_t peer = options.peers[i];
      add(peer, peer, std::move(messages[i]), options.message_bytes);
      add(signals_of(peer), peer, std::move(signals[i]), 0);
    }
  }

  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override {
    eager_ = true;
    connections_[peer]->enqueue(WireHeader::message, tag, bytes, ticket);
  }

  void release(const Arrival& arrival) noexcept override { buffers_.release(arrival.handle); }

  bool progress(Receiver& receiver) noexcept override {
    bool did = false;
    eager_ = false;
    epoll_event events[64];
    const int count = epoll_wait(poll_.get(), events, 64, 0);
    for (int i = 0; i < count; ++i) {
      const std::uint32_t place = events[i].data.u32;
      if ((events[i].events & ~EPOLLOUT) != 0 && connections_[place]) did |= read(place, receiver);
    }
    for (std::uint32_t place = 0; place < connections_.size(); ++place) {
      if (connections_[place]) did |= serve(place, receiver);
    }
    return did;
  }

  int event() const noexcept override { return poll_.get(); }
  bool arm() noexcept override { return !eager_; }

  void signal(std::uint32_t peer, Signal signal) noexcept override {
    const auto& connection = connections_[signals_of(peer)];
    if (!connection) return;
    eager_ = true;
    connection->enqueue(WireHeader::message, tag_of(signal), {}, 0);
  }
  std::size_t queued_signals(std::uint32_t peer) const noexcept override {
    const auto& connection = connections_[signals_of(peer)];
    return connection ? connection->queued() : 0;
  }

  /// On both connections: the one may be full, and the end of the other may be seen first.
  void abort(std::uint32_t culprit, std::string_view reason, Receiver& receiver) noexcept override {
    for (std::uint32_t place = 0; place < connections_.size(); ++place) {
      if (!connections_[place]) continue;
      connections_[place]->enqueue(WireHeader::abort, culprit, std::as_bytes(std::span(reason)), 0);
      write(place, receiver);
    }
  }

 private:
  /// Takes the messages of connections for signals as what they are.
  class SignalReceiver final : public Receiver {
   public:
    SignalReceiver(TcpTransport& transport, Receiver& receiver)
        : transport_(transport), receiver_(receiver) {}
    bool wants(std::uint32_t, Tag) noexcept override { return true; }
    void arrived(const Arrival& arrival) noexcept override {
      transport_.release(arrival);
      receiver_.signalled(arrival.peer, signal_of(arrival.tag));
    }
    void sent(std::uint64_t) noexcept override {}
    void failed(const Failure&) noexcept override {}

   private:
    TcpTransport& transport_;
    Receiver& receiver_;
  };

  std::uint32_t signals_of(std::uint32_t peer) const { return count_ + peer; }
  bool is_for_signals(std::uint32_t place) const { return place >= count_; }

  void add(std::uint32_t place, std::uint32_t peer, std::unique_ptr<Stream> stream,
           std::size_t max_message_bytes) {
    const int yes = 1;
    setsockopt(stream->descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    connections_[place] =
        std::make_unique<TcpConnection>(std::move(stream), peer, max_message_bytes, buffers_);
    watch(place);
  }

  /// What needs no event: queued messages, connections whose next message may be wanted by now.
  bool serve(std::uint32_t place, Receiver& receiver) noexcept {
    const TcpConnection& connection = *connections_[place];
    bool did = connection.wants_to_write() && write(place, receiver);
    if (connection.paused() || connection.has_buffered()) did |= read(place, receiver);
    if (connections_[place]) watch(place);
    return did;
  }

  bool write(std::uint32_t place, Receiver& receiver) noexcept {
    SignalReceiver signals(*this, receiver);
    return connections_[place]->write(is_for_signals(place) ? signals : receiver);
  }

  bool read(std::uint32_t place, Receiver& receiver) noexcept {
    SignalReceiver signals(*this, receiver);
    const bool did = connections_[place]->read(is_for_signals(place) ? signals : receiver);
    if (connections_[place]->failure() == nullptr) return did;
    const Failure failure = *connections_[place]->failure();
    if (is_for_signals(place) && failure.fault == Fault::lost) {
      connections_[place].reset();  // messages tell whether that matters
      return did;
    }
    receiver.failed(failure);  // who aborts now tells this peer, too, if it still listens
    if (connections_[failure.peer]) connections_[failure.peer]->drop_outgoing(receiver);
    connections_[failure.peer].reset();
    connections_[signals_of(failure.peer)].reset();
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
  std::vector<std::unique_ptr<TcpConnection>> connections_;  // by rank, then those for signals
  std::vector<std::uint32_t> watched_;                       // events of each
  FileDescriptor poll_;
  bool eager_ = false;  // something was queued since the last progress
};

std::unique_ptr<Transport> connect_tcp(const TransportOptions& options, Listener&& listener) {
  const auto call = [&](std::uint32_t rank, std::size_t failures) {
    // Begins with another address after a failure: what answers at one may not be the peer.
    const std::vector<std::string>& addresses = options.addresses[rank];
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const std::string& address = addresses[(failures + i) % addresses.size()];
      if (FileDescriptor socket = connect_tcp_address(address, options.deadline)) return socket;
    }
    return FileDescriptor();
  };
  auto sets = connect_mesh({.identity = {options.job, Purpose::tcp, options.me},
                            .peers = options.peers,
                            .listeners = listener.descriptors(),
                            .call = call,
                            .deadline = options.deadline,
                            .connections_per_peer = 2});
  listener = {};  // nobody is waited for any more
  const auto streams = [&](std::vector<PeerConnection> connections) {
    if (options.tls) {
      return encrypt(options.tls, options.me, options.peers, std::move(connections),
                     options.deadline);
    }
    Streams plain;
    for (PeerConnection& each : connections) plain.push_back(plain_stream(std::move(each.socket)));
    return plain;
  };
  Streams messages = streams(std::move(sets[0]));
  Streams signals = streams(std::move(sets[1]));
  return std::make_unique<TcpTransport>(options, std::move(messages), std::move(signals));
}

}  // namespace

const TransportKind kTcp = {.name = "tcp",
                            .reach = TransportKind::Reach::everywhere,
                            .in_auto = TransportKind::Auto::without_mpi,
                            .no_tls = {},
                            .listen = listen_tcp,
                            .connect = connect_tcp};

}  // namespace gradwire
