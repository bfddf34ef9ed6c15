#include "transport/handshake.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr std::uint32_t kMagic = 0x31485747;  // "GWH1"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kMaxStrangers = 64;             // connections that have proved nothing yet
constexpr auto kPatience = std::chrono::seconds(10);  // for each of them

void fill_random(std::span<std::byte> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::unavailable, "the system gives no random numbers (getrandom)");
  }
}

Proof prove(const Job& job, std::string_view side, const Hello& hello,
            const std::array<std::byte, 32>& nonce) {
  std::byte said[16 + sizeof(Hello) + 32] = {};
  std::memcpy(said, side.data(), side.size());
  store(said + 16, hello);
  store(said + 16 + sizeof(Hello), nonce);
  Proof proof;
  HMAC(EVP_sha256(), job.key.data(), static_cast<int>(job.key.size()),
       reinterpret_cast<const unsigned char*>(said), sizeof(said),
       reinterpret_cast<unsigned char*>(proof.data()), nullptr);
  return proof;
}

bool equal(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), 32) == 0; }

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

bool wait_for(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  return poll(&entry, 1, milliseconds_until(deadline)) > 0;
}

/// The whole of a small message; sockets are new, so it fits their buffers.
template <class T>
bool send_all(int socket, const T& message) {
  return send(socket, &message, sizeof(T), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(T));
}

/// Gathers a message of fixed size. nullopt: it is not complete; throws nothing.
template <class T>
struct Gatherer {
  std::byte bytes[sizeof(T)];
  std::size_t have = 0;

  enum class Result { complete, more, broken };
  Result read(int socket) {
    const ssize_t n = recv(socket, bytes + have, sizeof(T) - have, MSG_DONTWAIT);
    if (n == 0) return Result::broken;
    if (n < 0) return errno == EAGAIN || errno == EINTR ? Result::more : Result::broken;
    have += static_cast<std::size_t>(n);
    return have == sizeof(T) ? Result::complete : Result::more;
  }
  T value() const { return load<T>(bytes); }
};

template <class T>
std::optional<T> receive(int socket, Deadline deadline) {
  Gatherer<T> gatherer;
  while (Clock::now() < deadline) {
    if (!wait_for(socket, POLLIN, deadline)) continue;
    const auto result = gatherer.read(socket);
    if (result == Gatherer<T>::Result::complete) return gatherer.value();
    if (result == Gatherer<T>::Result::broken) return std::nullopt;
  }
  return std::nullopt;
}

void make_nonblocking(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK); }

/// The caller's side. False when the other end is not our peer.
bool introduce(const Meeting& meeting, std::uint32_t peer, int socket) {
  Hello hello{.magic = kMagic,
              .version = kVersion,
              .purpose = meeting.purpose,
              .job = meeting.job.id,
              .from = meeting.me,
              .to = peer};
  fill_random(hello.nonce);
  if (!send_all(socket, hello)) return false;
  const auto answer = receive<Answer>(socket, meeting.deadline);
  if (!answer) return false;
  if (!equal(answer->proof, prove(meeting.job, "answer", hello, answer->nonce))) return false;
  return send_all(socket, prove(meeting.job, "caller", hello, answer->nonce));
}

/// Somebody who called and has not proved anything yet.
struct Caller {
  FileDescriptor socket;
  Deadline until;
  Gatherer<Hello> hello;
  Gatherer<Proof> proof;
  std::array<std::byte, 32> nonce{};
};

/// Answers callers until all higher ranks have come.
class Door {
 public:
  explicit Door(const Meeting& meeting) : meeting_(meeting) {
    for (const std::uint32_t peer : meeting.peers) {
      if (peer > meeting.me) missing_.push_back(peer);
    }
  }

  std::map<std::uint32_t, FileDescriptor> wait() {
    while (!missing_.empty()) {
      if (Clock::now() >= meeting_.deadline) throw late(missing_);
      look();
    }
    return std::move(arrived_);
  }

  static Error late(const std::vector<std::uint32_t>& missing) {
    return {ErrorCode::timeout,
            fmt::format("no connection with rank {} before the deadline: is it running, and can it "
                        "reach this host?",
                        fmt::join(missing, ", "))};
  }

 private:
  void look() {
    std::vector<pollfd> polled{{meeting_.listener, POLLIN, 0}};
    for (const Caller& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), std::min(milliseconds_until(meeting_.deadline), 100));
    for (std::size_t i = callers_.size(); i-- > 0;) {
      const bool stays =
          Clock::now() < callers_[i].until && (polled[i + 1].revents == 0 || hear(callers_[i]));
      if (!stays) callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[0].revents != 0) open();
  }

  void open() {
    FileDescriptor socket(accept4(meeting_.listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (callers_.size() == kMaxStrangers) callers_.erase(callers_.begin());  // the oldest goes
    callers_.push_back({std::move(socket), Clock::now() + kPatience, {}, {}, {}});
  }

  /// False when the caller is to be forgotten, or has become a peer.
  bool hear(Caller& caller) {
    using HelloResult = Gatherer<Hello>::Result;
    if (caller.hello.have < sizeof(Hello)) {
      const HelloResult result = caller.hello.read(caller.socket.get());
      if (result != HelloResult::complete) return result == HelloResult::more;
      return answer(caller);
    }
    using ProofResult = Gatherer<Proof>::Result;
    const ProofResult result = caller.proof.read(caller.socket.get());
    if (result != ProofResult::complete) return result == ProofResult::more;
    const Hello hello = caller.hello.value();
    if (equal(caller.proof.value(), prove(meeting_.job, "caller", hello, caller.nonce))) {
      arrived_[hello.from] = std::move(caller.socket);
      std::erase(missing_, hello.from);
    }
    return false;
  }

  bool answer(Caller& caller) const {
    const Hello hello = caller.hello.value();
    const bool ours = hello.magic == kMagic && hello.version == kVersion &&
                      hello.purpose == meeting_.purpose && hello.job == meeting_.job.id &&
                      hello.to == meeting_.me &&
                      std::find(missing_.begin(), missing_.end(), hello.from) != missing_.end();
    if (!ours) return false;
    fill_random(caller.nonce);
    return send_all(caller.socket.get(),
                    Answer{caller.nonce, prove(meeting_.job, "answer", hello, caller.nonce)});
  }

  const Meeting& meeting_;
  std::vector<std::uint32_t> missing_;
  std::vector<Caller> callers_;
  std::map<std::uint32_t, FileDescriptor> arrived_;
};

/// Calls until somebody answers who knows the key.
FileDescriptor call_until_answered(const Meeting& meeting, std::uint32_t peer) {
  while (Clock::now() < meeting.deadline) {
    FileDescriptor socket = meeting.call(peer);
    if (socket && introduce(meeting, peer, socket.get())) return socket;
    poll(nullptr, 0, 20);
  }
  throw Door::late({peer});
}

}  // namespace

Job Job::random() {
  Job job;
  fill_random(job.id);
  fill_random(job.key);
  return job;
}

void Job::set_key(const std::string& secret) {
  std::string said = "gradwire job key ";
  said.append(reinterpret_cast<const char*>(id.data()), id.size());
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(said.data()), said.size(),
       reinterpret_cast<unsigned char*>(key.data()), nullptr);
}

std::string Job::id_text() const {
  std::string text;
  for (const std::byte byte : id) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::vector<FileDescriptor> meet(const Meeting& meeting) {
  std::map<std::uint32_t, FileDescriptor> lower;
  for (const std::uint32_t peer : meeting.peers) {
    if (peer < meeting.me) lower[peer] = call_until_answered(meeting, peer);
  }
  std::map<std::uint32_t, FileDescriptor> higher = Door(meeting).wait();
  std::vector<FileDescriptor> sockets;
  for (const std::uint32_t peer : meeting.peers) {
    sockets.push_back(std::move(peer < meeting.me ? lower[peer] : higher[peer]));
    make_nonblocking(sockets.back().get());
  }
  return sockets;
}

}  // namespace gradwire
