// Both ends of a new connection prove that they know the job's key, without showing it.
//
//   caller   -> Hello     job, ranks, a fresh nonce
//   answerer -> Answer    its own nonce, and its job
//   caller   -> Proof     that it knows the key
//   answerer -> Proof     the same, and that it takes the caller; or zeros: another key
//
// Proofs are HMAC-SHA256 over everything said before, so nothing can be replayed: each end's nonce
// is new. Who answers says nothing by which a guess at the key could be tried until the caller has
// proved itself. A stranger can make us keep one `Hello` per connection for a few seconds, nothing
// more. In a crowd of strangers a peer may be turned away, too: it calls again until the deadline.
// On Unix sockets (`Purpose::shm`) both ends must belong to the same user.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "net/job.h"

namespace gradwire {

/// What the connection is for. One that was made for something else is refused.
enum class Purpose : std::uint16_t { shm = 1, tcp = 2, store = 3 };

struct Hello {
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  Purpose purpose = Purpose::tcp;
  std::array<std::byte, 16> job{};
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(Hello) == 64);

struct Answer {
  std::array<std::byte, 32> nonce{};
  std::array<std::byte, 16> job{};
};
static_assert(sizeof(Answer) == 48);

/// As whom this end of a connection speaks.
struct Identity {
  Job job;
  Purpose purpose = Purpose::tcp;
  std::uint32_t me = 0;
};

struct HandshakeResult {
  bool accepted = false;
  bool other_key = false;  ///< True when it was not accepted because the answerer has another key.
  Proof key{};             ///< The session key: both ends know it and nobody else.
};

/// The caller's end, on a connected socket.
HandshakeResult shake_hands(const Identity& identity, std::uint32_t peer, int socket,
                            Deadline deadline);
/// The same for who calls a store: `identity` learns the store's job from the answer, with the key
/// that the `secret` makes. That takes a while, and is done again only when another job answers.
HandshakeResult shake_hands_with_store(Identity& identity, const std::string& secret, int socket,
                                       Deadline deadline);

/// The answerer's end: callers who have proved nothing yet, bounded in number, bytes and time.
class Acceptor {
 public:
  /// What a caller becomes. The socket does not block.
  using Arrived = std::function<void(std::uint32_t rank, FileDescriptor socket, const Proof& key)>;

  /// `expects`: whether a caller with this rank is awaited now. `expected_callers`: how many of
  /// ours may call at once.
  Acceptor(const Identity& identity, std::vector<int> listeners, std::size_t expected_callers,
           std::function<bool(std::uint32_t rank)> expects, Arrived arrived);

  /// Appends what to poll; after polling, `look` takes those entries.
  void add_to(std::vector<pollfd>& polled) const;
  void look(std::span<const pollfd> polled);

  /// Callers who said a fitting hello and could not prove it.
  std::size_t unproved() const { return unproved_; }

 private:
  /// The first bytes of a message, until it is whole.
  template <class T>
  struct Gathered {
    std::byte bytes[sizeof(T)];
    std::size_t have = 0;
  };
  struct Caller {
    FileDescriptor socket;
    Deadline until;
    Gathered<Hello> hello{};
    Gathered<Proof> proof{};
    std::array<std::byte, 32> nonce{};

    bool said_hello() const { return hello.have == sizeof(Hello); }
  };

  void open(int listener);
  void make_room();
  bool hear(Caller& caller);
  bool answer(Caller& caller) const;
  bool welcome(Caller& caller);

  Identity identity_;
  std::vector<int> listeners_;
  std::size_t most_callers_;
  std::function<bool(std::uint32_t)> expects_;
  Arrived arrived_;
  std::vector<Caller> callers_;
  std::size_t unproved_ = 0;
};

}  // namespace gradwire
