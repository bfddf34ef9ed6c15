// Executes operations: one thread per communicator owns lanes, mailboxes and the transport. Where
// there are cores to spare it lends lanes to workers for encoding and decoding.
//
// Callers hand operations over through a queue and wait on their `WorkState`. Operations are cut
// into pieces; up to `lanes` consecutive pieces are under way at once, each in its own lane, so
// that one is encoded while another travels. A piece's number, counted over all operations, is the
// tag of its messages: the same on every rank, since all make the same calls in the same order.
//
// Before its first piece a tensor is prepared, in a lane that sends nothing: with workers as early
// as can be, without them when there is nothing else to do or the next piece waits for it.
//
// Nothing waits in a circle: piece t + lanes starts in the lane of piece t, after that has ended
// here and its messages have left. Whoever still needs them is at piece t at most, and needs
// nothing of what comes later.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "engine/lane.h"
#include "engine/recording.h"
#include "engine/workers.h"

namespace gradwire::engine {

struct EngineOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t per_host = 0;              ///< ranks, as in `Ranks`
  std::vector<std::uint32_t> job_ranks{};  ///< as in `ConnectOptions`
  std::uint32_t lanes = 8;
  std::uint32_t workers = 0;      ///< threads that encode and decode; none: the engine's own does
  bool in_memory = false;         ///< no message leaves the host: none is sealed
  std::uint32_t cores = 1;        ///< of this host, per rank on it
  std::size_t message_bytes = 0;  ///< to encode into, when the transport has no memory of its own
  trace::Recorder* recorder = nullptr;          ///< outlives the engine; none: nothing is recorded
  std::map<std::uint32_t, std::string> lost{};  ///< peers that have left already, and why
};

class Engine final : private Inbox {
 public:
  Engine(std::unique_ptr<Router> transport, const EngineOptions& options);
  /// Lets messages leave that others need, then fails what is not done.
  ~Engine() override;

  /// From any thread. The operation's work is finished when it is done or has failed.
  void submit(std::shared_ptr<Operation> operation);

  /// From any thread. Fails all operations, here and on all other ranks, which hear the reason.
  void abort(const std::string& reason);

  /// The longest message that fits a lane.
  std::size_t lane_bytes() const { return lanes_[0].arena.size(); }

 private:
  void run();
  bool take_submitted();
  bool start_pieces();
  bool prepare(bool idle);
  bool start_preparation(Lane& lane);
  bool advance(Lane& lane, std::size_t most_steps = SIZE_MAX);
  bool send(Lane& lane);
  bool receive(Lane& lane);
  void count_passed_on(Lane& lane, std::span<const std::byte> bytes);
  bool compute(Lane& lane);
  Status execute_step(Lane& lane, Seal seal) noexcept;
  void take_result(Lane& lane);
  void next_step(Lane& lane) noexcept;
  bool may_spin() const;
  void finish(Lane& lane);
  void release(SlotMessage& slot) noexcept;
  void idle();
  int milliseconds_to_sleep() const;
  void check_deadlines();
  void ask_around(Deadline now);
  void accuse(const Operation& late);
  void fail(const Error& error, std::uint32_t culprit);
  Error told_in_job(const Error& error, std::uint32_t culprit) const;
  void fail_by_garbage(std::uint32_t peer, std::string_view what);
  std::string_view fault_of(const Arrival& arrival) const noexcept;
  void compare_calls(std::uint32_t peer, const Lane& lane);
  bool messages_left() const;
  /// Where the piece of a message is exchanged, sooner or later.
  const Lane& lane_of(Tag tag) const { return lanes_[number_of(tag) % lanes_.size()]; }

  // Inbox
  bool wants(std::uint32_t peer, Tag tag) noexcept override;
  void arrived(const Arrival& arrival) noexcept override;
  void sent(std::uint64_t ticket) noexcept override;
  void failed(const Failure& failure) noexcept override;
  std::optional<std::uint32_t> waits_for() noexcept override;
  void answered(std::uint32_t peer, std::optional<std::uint32_t> waits_for) noexcept override;

  std::unique_ptr<Router> transport_;
  const EngineOptions options_;
  const std::unique_ptr<const Recording> recording_;  // null unless there is a recorder
  std::unique_ptr<std::byte[]> private_memory_;       // to encode into, when the transport has none
  FileDescriptor wake_;

  // The progress thread's
  std::vector<Lane> lanes_;      // of pieces
  std::vector<Lane> preparing_;  // of tensors: one per worker, and at least one
  bool starved_ = false;         // the next piece waits for a tensor that is not prepared
  std::deque<std::shared_ptr<Operation>> operations_;  // not done, oldest first
  std::vector<std::deque<Arrival>> mailboxes_;         // by peer
  std::vector<std::size_t> unsent_to_;                 // messages, by peer
  std::map<std::uint32_t, std::string> lost_;          // peers, and why
  /// Begun when an operation is late, to find out whose fault it is.
  struct Inquiry {
    Deadline until;
    std::map<std::uint32_t, std::optional<std::uint32_t>> answers;  // by peer: whom it waits for
  };
  std::optional<Inquiry> inquiry_;
  Tag next_number_ = 0;  // of a piece
  std::optional<Error> broken_;
  std::optional<Deadline> spin_until_;  // while there is nothing to do
  bool stopping_ = false;
  Workers workers_;

  std::mutex mutex_;
  std::vector<std::shared_ptr<Operation>> submitted_;  // guarded by mutex_
  std::optional<std::string> aborted_because_;         // guarded by mutex_
  bool stop_ = false;                                  // guarded by mutex_
  std::atomic<bool> news_{false};  // set with the mutex held, so that the thread need not take it

  std::jthread thread_;
};

}  // namespace gradwire::engine
