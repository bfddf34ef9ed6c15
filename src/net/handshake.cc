#include "net/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/clock.h"

namespace gradwire {
namespace {

constexpr std::uint32_t kMagic = 0x31485747;  // "GWH1"
constexpr std::uint16_t kVersion = 2;
constexpr std::size_t kMaxStrangers = 64;             // who have proved nothing, beside our own
constexpr Proof kOtherKey{};                          // instead of a welcome
constexpr auto kPatience = std::chrono::seconds(10);  // with each of them
constexpr auto kWelcome = std::chrono::seconds(3);    // until who has answered says it

/// The proof of one end's word after all that was said before.
Proof prove(const Job& job, std::string_view word, const Hello& hello,
            const std::array<std::byte, 32>& nonce) {
  std::byte said[16 + sizeof(Hello) + 32] = {};
  std::memcpy(said, word.data(), word.size());
  store(said + 16, hello);
  store(said + 16 + sizeof(Hello), nonce);
  return gradwire::prove(job.key, said);
}

/// The whole of a small message; sockets are new, so it fits their buffers.
template <class T>
bool send_all(int socket, const T& message) {
  return send(socket, &message, sizeof(T), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(T));
}

/// On a Unix socket: whether the other end is a process of this user.
bool may_be_ours(const Identity& identity, int socket) {
  if (identity.purpose != Purpose::shm) return true;
  ucred other{};
  socklen_t length = sizeof(other);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         other.uid == geteuid();
}

bool has_hung_up(int socket) {
  pollfd polled{socket, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

enum class Gathering { complete, more, broken };

/// Takes what is there of a message, never more than that message.
Gathering gather(int socket, std::span<std::byte> bytes, std::size_t& have) {
  const ssize_t n = recv(socket, bytes.data() + have, bytes.size() - have, MSG_DONTWAIT);
  if (n == 0) return Gathering::broken;
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Gathering::more : Gathering::broken;
  have += static_cast<std::size_t>(n);
  return have == bytes.size() ? Gathering::complete : Gathering::more;
}

template <class T>
std::optional<T> receive(int socket, Deadline deadline) {
  std::byte bytes[sizeof(T)];
  std::size_t have = 0;
  while (Clock::now() < deadline) {
    pollfd polled{socket, POLLIN, 0};
    if (poll(&polled, 1, milliseconds_until(deadline)) <= 0) continue;
    const Gathering result = gather(socket, bytes, have);
    if (result == Gathering::complete) return load<T>(bytes);
    if (result == Gathering::broken) return std::nullopt;
  }
  return std::nullopt;
}

/// Says hello and proves itself. `job_of(answer)` is the job by which it does.
template <class JobOf>
HandshakeResult shake_hands_by(const Identity& identity, std::uint32_t peer, int socket,
                               Deadline deadline, JobOf job_of) {
  Hello hello{.magic = kMagic,
              .version = kVersion,
              .purpose = identity.purpose,
              .job = identity.job.id,
              .from = identity.me,
              .to = peer};
  fill_random(hello.nonce);
  if (!may_be_ours(identity, socket) || !send_all(socket, hello)) return {};
  const auto answer = receive<Answer>(socket, std::min(deadline, Clock::now() + kPatience));
  if (!answer) return {};
  const Job& job = job_of(*answer);
  const auto proof = [&](std::string_view word) { return prove(job, word, hello, answer->nonce); };
  if (!send_all(socket, proof("caller"))) return {};
  // The peer says welcome at once. A stranger who answered may never say a word, and the peer may
  // have other addresses.
  const auto welcome = receive<Proof>(socket, std::min(deadline, Clock::now() + kWelcome));
  if (!welcome) return {};
  if (!equal(*welcome, proof("welcome"))) return {.other_key = equal(*welcome, kOtherKey)};
  return {.accepted = true, .key = proof("session")};
}

}  // namespace

HandshakeResult shake_hands(const Identity& identity, std::uint32_t peer, int socket,
                            Deadline deadline) {
  return shake_hands_by(identity, peer, socket, deadline,
                        [&](const Answer&) -> const Job& { return identity.job; });
}

HandshakeResult shake_hands_with_store(Identity& identity, const std::string& secret, int socket,
                                       Deadline deadline) {
  return shake_hands_by(identity, 0, socket, deadline, [&](const Answer& answer) -> const Job& {
    // The id alone does not tell: an impostor may answer with that of a caller which has no job
    // yet, and know its key, which nobody has made.
    const bool known = identity.job.id == answer.job && identity.job.key != Job{}.key;
    if (!known) {
      identity.job.id = answer.job;
      identity.job.set_key(secret);
    }
    return identity.job;
  });
}

Acceptor::Acceptor(const Identity& identity, std::vector<int> listeners,
                   std::size_t expected_callers, std::function<bool(std::uint32_t)> expects,
                   Arrived arrived)
    : identity_(identity),
      listeners_(std::move(listeners)),
      most_callers_(kMaxStrangers + expected_callers),
      expects_(std::move(expects)),
      arrived_(std::move(arrived)) {}

void Acceptor::add_to(std::vector<pollfd>& polled) const {
  for (const int listener : listeners_) polled.push_back({listener, POLLIN, 0});
  for (const Caller& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
}

void Acceptor::look(std::span<const pollfd> polled) {
  const Deadline now = Clock::now();
  for (std::size_t i = callers_.size(); i-- > 0;) {
    const bool spoke = polled[listeners_.size() + i].revents != 0;
    const bool stays = now < callers_[i].until && (!spoke || hear(callers_[i]));
    if (!stays) callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (polled[i].revents != 0) open(listeners_[i]);
  }
}

void Acceptor::open(int listener) {
  FileDescriptor socket = FileDescriptor::not_inherited(
      [&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (socket && !may_be_ours(identity_, socket.get())) return;
  // Room is made also when descriptors are out: else the listener would keep us busy.
  if (!socket || callers_.size() == most_callers_) make_room();
  if (socket) callers_.push_back({std::move(socket), Clock::now() + kPatience});
}

/// The oldest goes, of those who have said nothing sensible before others.
void Acceptor::make_room() {
  const auto silent = std::find_if(callers_.begin(), callers_.end(),
                                   [](const Caller& each) { return !each.said_hello(); });
  const auto goes = silent != callers_.end() ? silent : callers_.begin();
  if (goes != callers_.end()) callers_.erase(goes);
}

/// False when the caller is to be forgotten, or has become a peer.
bool Acceptor::hear(Caller& caller) {
  if (!caller.said_hello()) {
    const Gathering result = gather(caller.socket.get(), caller.hello.bytes, caller.hello.have);
    if (result != Gathering::complete) return result == Gathering::more;
    return answer(caller);
  }
  const Gathering result = gather(caller.socket.get(), caller.proof.bytes, caller.proof.have);
  if (result == Gathering::more) return true;
  if (result == Gathering::complete && welcome(caller)) return false;
  if (result == Gathering::complete) send_all(caller.socket.get(), kOtherKey);
  ++unproved_;
  return false;
}

bool Acceptor::answer(Caller& caller) const {
  const Hello hello = load<Hello>(caller.hello.bytes);
  const bool ours = hello.magic == kMagic && hello.version == kVersion &&
                    hello.purpose == identity_.purpose &&
                    (hello.job == identity_.job.id || hello.purpose == Purpose::store) &&
                    hello.to == identity_.me && expects_(hello.from);
  if (!ours) return false;
  fill_random(caller.nonce);
  return send_all(caller.socket.get(), Answer{caller.nonce, identity_.job.id});
}

/// False when the caller has not proved what it said.
bool Acceptor::welcome(Caller& caller) {
  const Hello hello = load<Hello>(caller.hello.bytes);
  const auto proof = [&](std::string_view word) {
    return prove(identity_.job, word, hello, caller.nonce);
  };
  if (!equal(load<Proof>(caller.proof.bytes), proof("caller"))) return false;
  // Its rank may have come meanwhile. The caller may have gone, if we were slow: it calls again.
  const bool stays = expects_(hello.from) && !has_hung_up(caller.socket.get());
  if (stays && send_all(caller.socket.get(), proof("welcome"))) {
    arrived_(hello.from, std::move(caller.socket), proof("session"));
  }
  return true;
}

}  // namespace gradwire
