// Bytes between ranks: what every transport implements, and nobody but `Router` calls.
//
// A transport connects one rank with some of its peers and moves messages: a tag and bytes of any
// length. Messages of one peer arrive whole, once, and in the order in which it sent them. What is
// sent lies in the transport's `send_memory`, if it has one: peers on the same host decode straight
// out of it. Sockets write straight from wherever it lies. Signals go past all messages.
//
// Threads: one thread, the engine's progress thread, makes all calls after construction. Nothing
// here blocks; `progress` does what can be done now.
//
// Failure: a peer's fault is reported once by `Receiver::failed`, after all that it sent before.
// Nothing arrives from it any more, and what was being sent to it counts as sent. Other peers are
// not affected: a rank that is done may leave while others still talk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gradwire {

using Tag = std::uint64_t;

/// A message that arrived. Its bytes stay until `Transport::release`.
struct Arrival {
  std::uint32_t peer = 0;
  Tag tag = 0;
  std::span<const std::byte> bytes;
  std::uint64_t handle = 0;  ///< By which the transport knows it.
};

/// What a peer did to us.
enum class Fault : std::uint8_t {
  lost,     ///< Its process ended, or the connection broke.
  garbage,  ///< It sent what no gradwire sends.
  refused,  ///< It aborted, by an error of its own or of a third rank: see `culprit`.
};

struct Failure {
  Fault fault = Fault::lost;
  std::uint32_t peer = 0;     ///< The rank where the fault shows.
  std::uint32_t culprit = 0;  ///< The rank to blame: the peer itself unless it named another.
  std::string reason;
};

/// What ranks say past all messages: a question whom the other one waits for, or the answer to it.
struct Signal {
  enum class Kind : std::uint8_t { question, answer };
  Kind kind = Kind::question;
  std::uint32_t rank_plus_one = 0;  ///< Of an answer: the rank that is waited for. 0: none.
};

/// Where a transport reports to, from within `progress`.
class Receiver {
 public:
  virtual ~Receiver() = default;

  /// Whether a message with this tag may come in now. While the answer is no, its sender is made to
  /// wait; `progress` asks again.
  virtual bool wants(std::uint32_t peer, Tag tag) noexcept = 0;
  virtual void arrived(const Arrival& arrival) noexcept = 0;
  /// The bytes of an earlier `send` may be overwritten: `ticket` is the one given there.
  virtual void sent(std::uint64_t ticket) noexcept = 0;
  virtual void failed(const Failure& failure) noexcept = 0;
  virtual void signalled(std::uint32_t /*peer*/, Signal) noexcept {}
};

/// The longest reason of an abort, in bytes.
inline constexpr std::size_t kMaxReason = 480;

class Transport {
 public:
  virtual ~Transport() = default;

  /// What is sent must lie in here; empty when it may lie anywhere.
  virtual std::span<std::byte> send_memory() noexcept { return {}; }

  /// Begins to send `bytes`, which do not change until `Receiver::sent(ticket)`. An empty message
  /// is a message, too. The peer has not failed.
  virtual void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
                    std::uint64_t ticket) noexcept = 0;

  /// Gives an arrival's bytes back.
  virtual void release(const Arrival& arrival) noexcept = 0;

  /// Does what can be done without waiting; true when that was something.
  virtual bool progress(Receiver& receiver) noexcept = 0;

  /// Readable when `progress` may have something to do, provided that `arm` was called and returned
  /// true. It returns false when there is something already.
  virtual int event() const noexcept = 0;
  virtual bool arm() noexcept = 0;

  /// Sends a signal, as well as it can. The peer has not failed.
  virtual void signal(std::uint32_t peer, Signal signal) noexcept = 0;
  /// Signals to the peer that have not left yet.
  virtual std::size_t queued_signals(std::uint32_t /*peer*/) const noexcept { return 0; }

  /// Tells all peers that this rank gives up, and that `culprit` is to blame: as well as it can,
  /// without waiting, and past all messages. Called once, with at most `kMaxReason` bytes. Messages
  /// that leave meanwhile are reported to `receiver`.
  virtual void abort(std::uint32_t culprit, std::string_view reason,
                     Receiver& receiver) noexcept = 0;
};

}  // namespace gradwire
