#include "transport/mpi_transport.h"

#include <fmt/format.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "transport/message_buffers.h"
#include "transport/mpi_world.h"
#include "transport/rank_or_none.h"

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
  std::uint64_t tag = 0;  // of an answer: whom the rank waits for; of an abort: the culprit
};
static_assert(sizeof(MpiHeader) == 16);

/// All that MPI may touch. Outlives the transport until MPI is done with it on all ranks.
struct Estate {
  std::unique_ptr<MpiComm> comm;
  MessageBuffers buffers;
  std::vector<std::byte> last_words;  // of an abort
  std::vector<MpiRequest> farewells;  // aborts and goodbyes; not the progress thread's
  std::vector<MpiRequest> requests;   // others that nobody waits for any more
  std::size_t goodbyes = 0;           // still to come

  /// For messages that come too late. Their senders are waiting for somebody to take them.
  void drop(const MpiMessage& message) noexcept {
    try {
      MpiRequest request = 0;
      const auto bytes = buffers.at(buffers.acquire(message.bytes)).first(message.bytes);
      if (comm->receive(message, bytes, request) == MpiState::done) requests.push_back(request);
    } catch (const std::bad_alloc&) {  // then its sender's estate stays, too
    }
    if (message.kind == kGoodbye && goodbyes > 0) --goodbyes;
  }

  /// Whether MPI is done with it.
  bool settled() noexcept {
    MpiMessage message;
    while (comm->probe(message) == MpiState::done) drop(message);
    const auto gone = [&](MpiRequest request) { return comm->test(request) != MpiState::pending; };
    std::erase_if(requests, gone);
    std::erase_if(farewells, gone);
    return requests.empty() && farewells.empty() && goodbyes == 0;
  }
};

/// What closed transports left. Looked through by those who connect and close: they are in MPI
/// anyway.
class Estates {
 public:
  static Estates& all() {
    static auto& estates = *new Estates;  // never destroyed: MPI may be gone by then
    return estates;
  }
  void add(std::unique_ptr<Estate> estate) {
    const std::lock_guard lock(mutex_);
    estates_.push_back(std::move(estate));
  }
  void settle() {
    const std::lock_guard lock(mutex_);
    estates_.remove_if([](const auto& estate) { return estate->settled(); });
  }

 private:
  std::mutex mutex_;
  std::list<std::unique_ptr<Estate>> estates_;
};

struct Outgoing {
  Tag tag = 0;
  std::span<const std::byte> bytes;
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
  MpiTransport(std::unique_ptr<MpiWorld> world, const MpiOptions& options)
      : world_(std::move(world)),
        numbers_(options.peers),
        max_bytes_(options.max_message_bytes + sizeof(MpiHeader)),
        peers_(options.count),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        estate_(std::make_unique<Estate>()) {
    for (const std::uint32_t peer : numbers_) peers_[peer].here = true;
    estate_->comm = world_->duplicate(options.deadline);
    estate_->goodbyes = numbers_.size();
  }

  ~MpiTransport() override {
    for (const Outgoing& said : talk_) estate_->requests.push_back(said.request);
    for (const std::uint32_t peer : numbers_) {
      leave_to_estate(peers_[peer]);
      bid_farewell(peer, kGoodbye, {});
    }
    Estates::all().add(std::move(estate_));
    Estates::all().settle();
  }

  std::string_view name() const noexcept override { return "mpi"; }
  std::span<std::byte> send_memory() noexcept override { return {}; }

  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override {
    eager_ = true;
    if (peers_[peer].here) {
      peers_[peer].waiting.push_back({tag, bytes, ticket});
    } else {
      orphans_.push_back(ticket);
    }
  }

  void release(const Arrival& arrival) noexcept override {
    estate_->buffers.release(arrival.handle);
  }

  bool progress(Inbox& inbox) noexcept override {
    eager_ = false;
    bool did = !orphans_.empty();
    for (const std::uint64_t ticket : orphans_) inbox.sent(ticket);
    orphans_.clear();
    did |= match();
    std::erase_if(talk_, [&](const Outgoing& said) {
      if (estate_->comm->test(said.request) == MpiState::pending) return false;
      estate_->buffers.release(said.buffer);
      return true;
    });
    for (const std::uint32_t peer : numbers_) {
      if (peers_[peer].here) did |= push(peer, inbox);
      if (peers_[peer].here) did |= pull(peer, inbox);
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

  void ask(std::uint32_t peer) noexcept override {
    if (peers_[peer].here) say(peer, kQuestion, 0);
  }

  void abort(std::uint32_t culprit, std::string_view reason) noexcept override {
    if (aborted_.exchange(true)) return;
    const std::string_view said = reason.substr(0, kMaxReason);
    MpiHeader header{.tag = culprit};
    auto& words = estate_->last_words;
    words.resize(sizeof(header) + said.size());
    std::memcpy(words.data(), &header, sizeof(header));
    std::memcpy(words.data() + sizeof(header), said.data(), said.size());
    // Also to those who have left: they wait for our goodbye only, and nothing is freed before.
    for (const std::uint32_t peer : numbers_) bid_farewell(peer, kAbort, words);
  }

 private:
  /// From any thread, but only from `abort`, once, and the end.
  void bid_farewell(std::uint32_t peer, Kind kind, std::span<const std::byte> bytes) noexcept {
    MpiRequest request = 0;
    if (estate_->comm->send(peer, kind, bytes, request) == MpiState::done) {
      estate_->farewells.push_back(request);
    }
  }

  /// Takes what has come off MPI's queues. Senders have at most `kWindow` messages there.
  bool match() noexcept {
    bool did = false;
    MpiMessage message;
    for (int i = 0; i < kProbesPerRound; ++i) {
      if (estate_->comm->probe(message) != MpiState::done) break;
      did = true;
      Peer& peer = peers_[message.peer];
      if (!peer.here) {
        estate_->drop(message);
      } else if (message.kind != kMessage && message.kind != kGoodbye) {
        peer.incoming.push_front({message});  // also past messages that we do not want yet
      } else {
        peer.incoming.push_back({message});
      }
    }
    return did;
  }

  bool push(std::uint32_t number, Inbox& inbox) noexcept {
    Peer& peer = peers_[number];
    bool did = false;
    while (!peer.waiting.empty() && peer.sending.size() < kWindow) {
      Outgoing& out = peer.waiting.front();
      if (!begin_send(number, out)) break;
      peer.sending.push_back(out);
      peer.waiting.pop_front();
      did = true;
    }
    while (!peer.sending.empty()) {
      const Outgoing& out = peer.sending.front();
      const MpiState state = estate_->comm->test(out.request);
      if (state == MpiState::pending) break;
      inbox.sent(out.ticket);
      estate_->buffers.release(out.buffer);
      peer.sending.pop_front();
      did = true;
      if (state == MpiState::failed) {
        fail({Fault::lost, number, number, "MPI cannot send to it"}, inbox);
        break;
      }
    }
    return did;
  }

  /// A word that does not wait for the window.
  void say(std::uint32_t peer, Kind kind, std::uint64_t word) noexcept {
    Outgoing said;
    said.tag = word;
    said.kind = kind;
    if (begin_send(peer, said)) talk_.push_back(said);
  }

  /// False when there is no memory now: later there may be.
  bool begin_send(std::uint32_t peer, Outgoing& out) noexcept {
    const std::size_t bytes = sizeof(MpiHeader) + out.bytes.size();
    if (!acquire(bytes, out.buffer)) return false;
    const auto copy = estate_->buffers.at(out.buffer).first(bytes);
    const MpiHeader header{.tag = out.tag};
    std::memcpy(copy.data(), &header, sizeof(header));
    std::copy(out.bytes.begin(), out.bytes.end(), copy.begin() + sizeof(header));
    if (estate_->comm->send(peer, out.kind, copy, out.request) == MpiState::done) return true;
    estate_->buffers.release(out.buffer);
    return false;
  }

  bool pull(std::uint32_t number, Inbox& inbox) noexcept {
    Peer& peer = peers_[number];
    bool did = false;
    while (peer.here && !peer.incoming.empty()) {
      for (std::size_t i = 0; i < std::min(kAhead, peer.incoming.size()); ++i) {
        did |= begin_receive(number, peer.incoming[i], inbox);
        if (!peer.here) return true;
      }
      if (!deliver(number, peer.incoming.front(), inbox)) break;
      did = true;
    }
    return did;
  }

  bool begin_receive(std::uint32_t number, Incoming& in, Inbox& inbox) noexcept {
    if (in.state != Incoming::State::matched) return false;
    const std::size_t bytes = in.message.bytes;
    const std::size_t least = in.message.kind == kGoodbye ? 0 : sizeof(MpiHeader);
    const std::size_t most = in.message.kind == kMessage ? max_bytes_ : least + kMaxReason;
    if (bytes < least || bytes > most) {
      fail({Fault::garbage, number, number, "bytes that are no message"}, inbox);
      return true;
    }
    if (!acquire(bytes, in.buffer)) return false;
    const auto room = estate_->buffers.at(in.buffer).first(bytes);
    if (estate_->comm->receive(in.message, room, in.request) != MpiState::done) {
      fail({Fault::lost, number, number, "MPI cannot receive from it"}, inbox);
      return true;
    }
    in.state = Incoming::State::receiving;
    return true;
  }

  /// Hands over the peer's next message; false when it is not here yet, or not wanted yet.
  bool deliver(std::uint32_t number, Incoming& in, Inbox& inbox) noexcept {
    if (in.state == Incoming::State::matched) return false;
    if (in.state == Incoming::State::receiving) {
      const MpiState state = estate_->comm->test(in.request);
      if (state == MpiState::pending) return false;
      in.state = Incoming::State::received;
      if (state == MpiState::failed) {
        fail({Fault::lost, number, number, "MPI cannot receive from it"}, inbox);
        return true;
      }
    }
    if (in.message.kind == kGoodbye) {
      --estate_->goodbyes;
      fail({Fault::lost, number, number, "it closed its communicator"}, inbox);
      return true;
    }
    const auto bytes = estate_->buffers.at(in.buffer).first(in.message.bytes);
    const auto header = load<MpiHeader>(bytes.data());
    const auto body = bytes.subspan(sizeof(header));
    if (header.magic != MpiHeader::kMagic) {
      fail({Fault::garbage, number, number, "bytes that are no message"}, inbox);
    } else if (in.message.kind == kAbort) {
      fail({Fault::refused, number, static_cast<std::uint32_t>(header.tag),
            std::string(reinterpret_cast<const char*>(body.data()), body.size())},
           inbox);
    } else if (in.message.kind != kMessage) {
      const bool asks = in.message.kind == kQuestion;
      estate_->buffers.release(in.buffer);
      peers_[number].incoming.pop_front();
      if (asks) say(number, kAnswer, pack_rank(inbox.waits_for()));
      if (!asks) inbox.answered(number, unpack_rank(static_cast<std::uint32_t>(header.tag)));
    } else {
      if (!inbox.wants(number, header.tag)) return false;
      const Arrival arrival{number, header.tag, body, in.buffer};
      peers_[number].incoming.pop_front();
      inbox.arrived(arrival);
    }
    return true;
  }

  void fail(const Failure& failure, Inbox& inbox) noexcept {
    Peer& peer = peers_[failure.peer];
    for (const auto* queue : {&peer.sending, &peer.waiting}) {
      for (const Outgoing& out : *queue) inbox.sent(out.ticket);
    }
    leave_to_estate(peer);
    inbox.failed(failure);
  }

  /// Its messages, in and out, are nobody's from here on. Their buffers stay taken.
  void leave_to_estate(Peer& peer) noexcept {
    peer.here = false;
    for (const Outgoing& out : peer.sending) estate_->requests.push_back(out.request);
    for (const Incoming& in : peer.incoming) {
      if (in.state == Incoming::State::receiving) estate_->requests.push_back(in.request);
      if (in.state == Incoming::State::matched) estate_->drop(in.message);
      if (in.state == Incoming::State::receiving && in.message.kind == kGoodbye)
        --estate_->goodbyes;
    }
    peer = {};
  }

  bool acquire(std::size_t bytes, std::uint64_t& buffer) noexcept {
    try {
      buffer = estate_->buffers.acquire(bytes);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  std::unique_ptr<MpiWorld> world_;
  const std::vector<std::uint32_t> numbers_;  // of our peers
  const std::size_t max_bytes_;
  std::vector<Peer> peers_;             // by rank
  std::vector<Outgoing> talk_;          // questions and answers that have not been taken
  std::vector<std::uint64_t> orphans_;  // tickets of messages to peers that are gone
  FileDescriptor timer_;
  long pause_ns_ = kShortestPauseNs;
  bool eager_ = false;  // something was queued since the last progress
  std::atomic<bool> aborted_{false};
  std::unique_ptr<Estate> estate_;
};

}  // namespace

std::unique_ptr<Transport> connect_mpi(const MpiOptions& options) {
  auto world = std::make_unique<MpiWorld>();
  if (world->rank() != options.me || world->size() != options.count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} is rank {} of {} in MPI: take MPI's numbers, or another "
                            "transport",
                            options.me, options.count, world->rank(), world->size()));
  }
  Estates::all().settle();
  return std::make_unique<MpiTransport>(std::move(world), options);
}

}  // namespace gradwire
