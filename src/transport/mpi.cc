// `mpi`: ranks that mpirun or srun started, over whatever network their MPI knows.
//
// A message travels as one MPI message behind a small header: from a copy, so that MPI never holds
// memory that is not ours, and synchronously, so that MPI never keeps more than `kWindow` messages
// that a peer does not want yet. MPI cannot say when something arrives: a waiting rank looks again
// after a pause that grows to a millisecond.
//
// MPI tells nobody that a rank has left. Closing therefore says goodbye to all peers. A rank that
// dies without shows as a missed deadline, unless mpirun ends the job first, as it does by default.
//
// Closing never waits. What MPI is not done with is left behind, and freed by a later
// closing or connecting here once all peers have said goodbye; if they never do, it stays.
#include <fmt/format.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "transport/message_buffers.h"
#include "transport/mpi_world.h"
#include "transport/transport_kinds.h"

namespace gradwire {
namespace {

constexpr std::size_t kWindow = 8;  // messages to a peer that it has not taken yet
constexpr std::size_t kAhead = 2;   // messages of a peer that we receive before they are wanted
constexpr int kProbesPerRound = 64;
constexpr long kShortestPauseNs = 20'000;
constexpr long kLongestPauseNs = 1'000'000;

enum Kind : int { kMessage, kQuestion, kAnswer, kAbort, kGoodbye };  // MPI's tag

/// Before all but goodbyes. 16 bytes: what follows is aligned as memory from the heap is.
struct MpiHeader {
  static constexpr std::uint64_t kMagic = 0x4950'4d31'5747;
  std::uint64_t magic = kMagic;
  std::uint64_t tag = 0;  // of an answer: `rank_plus_one`; of an abort: the culprit
};
static_assert(sizeof(MpiHeader) == 16);

/// All that MPI may touch. Outlives the transport until MPI is done with it on all ranks.
struct MpiResources {
  std::unique_ptr<MpiComm> comm;
  MessageBuffers buffers;
  std::vector<std::byte> abort_message;
  std::vector<MpiRequest> requests;  // that nobody waits for any more
  std::size_t goodbyes = 0;          // still to come

  /// For messages that come too late. Their senders are waiting for somebody to take them.
  void drop(const MpiMessage& message) noexcept {
    try {
      MpiRequest request = 0;
      const auto bytes = buffers.at(buffers.acquire(message.bytes)).first(message.bytes);
      if (comm->receive(message, bytes, request) == MpiState::done) requests.push_back(request);
    } catch (const std::bad_alloc&) {  // then its sender's resources stay, too
    }
    if (message.kind == kGoodbye && goodbyes > 0) --goodbyes;
  }

  /// Whether MPI is done with them.
  bool unused() noexcept {
    MpiMessage message;
    while (comm->probe(message) == MpiState::done) drop(message);
    std::erase_if(requests, [&](MpiRequest each) { return comm->test(each) != MpiState::pending; });
    return requests.empty() && goodbyes == 0;
  }
};

/// What closed transports left. Looked through by those who connect and close: they are in MPI
/// anyway.
class Teardown {
 public:
  static Teardown& of_process() {
    static auto& teardown = *new Teardown;  // never destroyed: MPI may be gone by then
    return teardown;
  }
  void add(std::unique_ptr<MpiResources> resources) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(resources));
  }
  void free_unused() {
    const std::lock_guard lock(mutex_);
    pending_.remove_if([](const auto& resources) { return resources->unused(); });
  }

 private:
  std::mutex mutex_;
  std::list<std::unique_ptr<MpiResources>> pending_;
};

struct Outgoing {
  std::uint32_t peer = 0;
  Tag tag = 0;
  std::span<const std::byte> bytes = {};
  std::uint64_t ticket = 0;
  std::uint64_t buffer = 0;
  MpiRequest request = 0;
  Kind kind = kMessage;
};

struct Incoming {
  enum class State { matched, receiving, received };
  MpiMessage message;
  State state = State::matched;
  std::uint64_t buffer = 0;
  MpiRequest request = 0;
};

struct Peer {
  bool here = false;             // it is one of ours and has neither failed nor left
  std::deque<Outgoing> waiting;  // for the window
  std::deque<Outgoing> sending;
  std::deque<Incoming> incoming;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::unique_ptr<MpiWorld> world, const TransportOptions& options)
      : world_(std::move(world)),
        numbers_(options.peers),
        max_bytes_(options.message_bytes + sizeof(MpiHeader)),
        peers_(options.count),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        mpi_(std::make_unique<MpiResources>()) {
    for (const std::uint32_t peer : numbers_) peers_[peer].here = true;
    mpi_->comm = world_->duplicate(options.deadline);
    mpi_->goodbyes = numbers_.size();
  }

  ~MpiTransport() override {
    for (const Outgoing& signal : signals_) mpi_->requests.push_back(signal.request);
    for (const std::uint32_t peer : numbers_) {
      abandon(peers_[peer]);
      send_unawaited(peer, kGoodbye, {});
    }
    Teardown::of_process().add(std::move(mpi_));
    Teardown::of_process().free_unused();
  }

  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override {
    eager_ = true;
    peers_[peer].waiting.push_back({peer, tag, bytes, ticket});
  }

  void release(const Arrival& arrival) noexcept override { mpi_->buffers.release(arrival.handle); }

  bool progress(Receiver& receiver) noexcept override {
    eager_ = false;
    bool did = match();
    std::erase_if(signals_, [&](const Outgoing& signal) {
      if (mpi_->comm->test(signal.request) == MpiState::pending) return false;
      mpi_->buffers.release(signal.buffer);
      return true;
    });
    for (const std::uint32_t peer : numbers_) {
      if (peers_[peer].here) did |= push(peer, receiver);
      if (peers_[peer].here) did |= pull(peer, receiver);
    }
    if (did) pause_ns_ = kShortestPauseNs;
    return did;
  }

  int event() const noexcept override { return timer_.get(); }

  bool arm() noexcept override {
    if (eager_) return false;
    itimerspec pause{};
    pause.it_value.tv_nsec = pause_ns_;
    timerfd_settime(timer_.get(), 0, &pause, nullptr);
    pause_ns_ = std::min(2 * pause_ns_, kLongestPauseNs);
    return true;
  }

  /// Does not wait for the window.
  void signal(std::uint32_t peer, Signal signal) noexcept override {
    Outgoing out{.peer = peer, .tag = signal.rank_plus_one};
    out.kind = signal.kind == Signal::Kind::question ? kQuestion : kAnswer;
    if (begin_send(out)) signals_.push_back(out);
  }
  std::size_t queued_signals(std::uint32_t peer) const noexcept override {
    return static_cast<std::size_t>(
        std::count_if(signals_.begin(), signals_.end(),
                      [&](const Outgoing& signal) { return signal.peer == peer; }));
  }

  void abort(std::uint32_t culprit, std::string_view reason, Receiver&) noexcept override {
    const MpiHeader header{.tag = culprit};
    auto& message = mpi_->abort_message;
    message.resize(sizeof(header) + reason.size());
    store(message.data(), header);
    std::memcpy(message.data() + sizeof(header), reason.data(), reason.size());
    // Also to those who have left: they wait for our goodbye only, and nothing is freed before.
    for (const std::uint32_t peer : numbers_) send_unawaited(peer, kAbort, message);
  }

 private:
  void send_unawaited(std::uint32_t peer, Kind kind, std::span<const std::byte> bytes) noexcept {
    MpiRequest request = 0;
    if (mpi_->comm->send(peer, kind, bytes, request) == MpiState::done) {
      mpi_->requests.push_back(request);
    }
  }

  /// Takes what has come off MPI's queues. Senders have at most `kWindow` messages there.
  bool match() noexcept {
    bool did = false;
    MpiMessage message;
    for (int i = 0; i < kProbesPerRound; ++i) {
      if (mpi_->comm->probe(message) != MpiState::done) break;
      did = true;
      Peer& peer = peers_[message.peer];
      if (!peer.here) {
        mpi_->drop(message);
      } else if (message.kind != kMessage && message.kind != kGoodbye) {
        peer.incoming.push_front({message});  // also past messages that we do not want yet
      } else {
        peer.incoming.push_back({message});
      }
    }
    return did;
  }

  bool push(std::uint32_t number, Receiver& receiver) noexcept {
    Peer& peer = peers_[number];
    bool did = false;
    while (!peer.waiting.empty() && peer.sending.size() < kWindow) {
      Outgoing& out = peer.waiting.front();
      if (!begin_send(out)) break;
      peer.sending.push_back(out);
      peer.waiting.pop_front();
      did = true;
    }
    while (!peer.sending.empty()) {
      const Outgoing& out = peer.sending.front();
      const MpiState state = mpi_->comm->test(out.request);
      if (state == MpiState::pending) break;
      receiver.sent(out.ticket);
      mpi_->buffers.release(out.buffer);
      peer.sending.pop_front();
      did = true;
      if (state == MpiState::failed) {
        fail({Fault::lost, number, number, "MPI cannot send to it"}, receiver);
        break;
      }
    }
    return did;
  }

  /// False when there is no memory now: later there may be.
  bool begin_send(Outgoing& out) noexcept {
    const std::size_t bytes = sizeof(MpiHeader) + out.bytes.size();
    if (!acquire(bytes, out.buffer)) return false;
    const auto copy = mpi_->buffers.at(out.buffer).first(bytes);
    const MpiHeader header{.tag = out.tag};
    store(copy.data(), header);
    std::copy(out.bytes.begin(), out.bytes.end(), copy.begin() + sizeof(header));
    if (mpi_->comm->send(out.peer, out.kind, copy, out.request) == MpiState::done) return true;
    mpi_->buffers.release(out.buffer);
    return false;
  }

  bool pull(std::uint32_t number, Receiver& receiver) noexcept {
    Peer& peer = peers_[number];
    bool did = false;
    while (peer.here && !peer.incoming.empty()) {
      for (std::size_t i = 0; i < std::min(kAhead, peer.incoming.size()); ++i) {
        did |= begin_receive(number, peer.incoming[i], receiver);
        if (!peer.here) return true;
      }
      if (!deliver(number, peer.incoming.front(), receiver)) break;
      did = true;
    }
    return did;
  }

  bool begin_receive(std::uint32_t number, Incoming& in, Receiver& receiver) noexcept {
    if (in.state != Incoming::State::matched) return false;
    const std::size_t bytes = in.message.bytes;
    const std::size_t least = in.message.kind == kGoodbye ? 0 : sizeof(MpiHeader);
    const std::size_t most = in.message.kind == kMessage ? max_bytes_ : least + kMaxReason;
    if (bytes < least || bytes > most) {
      fail({Fault::garbage, number, number, "bytes that are no message"}, receiver);
      return true;
    }
    if (!acquire(bytes, in.buffer)) return false;
    const auto room = mpi_->buffers.at(in.buffer).first(bytes);
    if (mpi_->comm->receive(in.message, room, in.request) != MpiState::done) {
      fail({Fault::lost, number, number, "MPI cannot receive from it"}, receiver);
      return true;
    }
    in.state = Incoming::State::receiving;
    return true;
  }

  /// Hands over the peer's next message; false when it is not here yet, or not wanted yet.
  bool deliver(std::uint32_t number, Incoming& in, Receiver& receiver) noexcept {
    if (in.state == Incoming::State::matched) return false;
    if (in.state == Incoming::State::receiving) {
      const MpiState state = mpi_->comm->test(in.request);
      if (state == MpiState::pending) return false;
      in.state = Incoming::State::received;
      if (state == MpiState::failed) {
        fail({Fault::lost, number, number, "MPI cannot receive from it"}, receiver);
        return true;
      }
    }
    if (in.message.kind == kGoodbye) {
      --mpi_->goodbyes;
      fail({Fault::lost, number, number, "it closed its communicator"}, receiver);
      return true;
    }
    const auto bytes = mpi_->buffers.at(in.buffer).first(in.message.bytes);
    const auto header = load<MpiHeader>(bytes.data());
    const auto body = bytes.subspan(sizeof(header));
    if (header.magic != MpiHeader::kMagic) {
      fail({Fault::garbage, number, number, "bytes that are no message"}, receiver);
    } else if (in.message.kind == kAbort) {
      fail({Fault::refused, number, static_cast<std::uint32_t>(header.tag),
            std::string(reinterpret_cast<const char*>(body.data()), body.size())},
           receiver);
    } else if (in.message.kind != kMessage) {
      const Signal signal{
          in.message.kind == kQuestion ? Signal::Kind::question : Signal::Kind::answer,
          static_cast<std::uint32_t>(header.tag)};
      mpi_->buffers.release(in.buffer);
      peers_[number].incoming.pop_front();
      receiver.signalled(number, signal);
    } else {
      if (!receiver.wants(number, header.tag)) return false;
      const Arrival arrival{number, header.tag, body, in.buffer};
      peers_[number].incoming.pop_front();
      receiver.arrived(arrival);
    }
    return true;
  }

  void fail(const Failure& failure, Receiver& receiver) noexcept {
    Peer& peer = peers_[failure.peer];
    for (const auto* queue : {&peer.sending, &peer.waiting}) {
      for (const Outgoing& out : *queue) receiver.sent(out.ticket);
    }
    abandon(peer);
    receiver.failed(failure);
  }

  /// Its messages, in and out, are nobody's from here on. Their buffers stay taken.
  void abandon(Peer& peer) noexcept {
    peer.here = false;
    for (const Outgoing& out : peer.sending) mpi_->requests.push_back(out.request);
    for (const Incoming& in : peer.incoming) {
      if (in.state == Incoming::State::receiving) mpi_->requests.push_back(in.request);
      if (in.state == Incoming::State::matched) mpi_->drop(in.message);
      if (in.state == Incoming::State::receiving && in.message.kind == kGoodbye) --mpi_->goodbyes;
    }
    peer = {};
  }

  bool acquire(std::size_t bytes, std::uint64_t& buffer) noexcept {
    try {
      buffer = mpi_->buffers.acquire(bytes);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  std::unique_ptr<MpiWorld> world_;
  const std::vector<std::uint32_t> numbers_;  // of our peers
  const std::size_t max_bytes_;
  std::vector<Peer> peers_;        // by rank
  std::vector<Outgoing> signals_;  // that have not been taken
  FileDescriptor timer_;
  long pause_ns_ = kShortestPauseNs;
  bool eager_ = false;  // something was queued since the last progress
  std::unique_ptr<MpiResources> mpi_;
};

/// All ranks of MPI_COMM_WORLD make it together, also those with no peer. Throws as `MpiWorld`, and
/// `Error(invalid_argument)` when MPI counts ranks otherwise.
std::unique_ptr<Transport> connect_mpi(const TransportOptions& options, Listener&&) {
  auto world = std::make_unique<MpiWorld>();
  if (world->rank() != options.me || world->size() != options.count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} is rank {} of {} in MPI: take MPI's numbers, or another "
                            "transport",
                            options.me, options.count, world->rank(), world->size()));
  }
  Teardown::of_process().free_unused();
  return std::make_unique<MpiTransport>(std::move(world), options);
}

}  // namespace

const TransportKind kMpi = {
    .name = "mpi",
    .reach = TransportKind::Reach::everywhere,
    .in_auto = TransportKind::Auto::with_mpi,
    .no_tls = "messages of MPI are not encrypted: take transport tcp, or encryption none",
    .listen = nullptr,
    .connect = connect_mpi};

}  // namespace gradwire
