// A piece of an operation under way, or the preparation of one of its tensors: where it is in its
// schedule, its messages, its sums.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codec/notes.h"
#include "engine/operation.h"
#include "gradwire/frame.h"
#include "transport/router.h"

namespace gradwire::engine {

/// The tag of a message is the number of its piece, counted over all operations, and above that the
/// hash of its operation's call: ranks whose calls differ notice it at no cost.
inline constexpr int kNumberBits = 48;  // a million pieces per second for nine years
constexpr Tag number_of(Tag tag) noexcept { return tag & ((Tag{1} << kNumberBits) - 1); }

/// A message in a slot: one's own, or one that arrived and is to be released.
struct SlotMessage {
  std::span<const std::byte> bytes;
  std::optional<Arrival> arrival;
  bool made_here = false;  // by encoding: there is nothing to verify
};

enum class Phase : std::uint8_t {
  ready,      ///< for its step
  computing,  ///< a worker's: only `operation`, `piece`, `tag` and `unsent` are for others to read
  computed,   ///< its step is done, and `status` tells how it went
};

/// What a chunk has of one item.
struct ItemRange {
  std::uint32_t item;  // of the operation
  std::uint32_t chunk;
  std::size_t first;  // element of the item
  std::size_t count;
  std::size_t sums_at;  // where its sums lie in the lane's
  bool one_place;       // as in `Lifetimes`
};

struct Lane {
  std::uint8_t number = 0;  // among all lanes of the engine
  std::shared_ptr<Operation> operation;
  const Routine* routine = nullptr;   // the operation's recipe has it
  std::optional<std::size_t> source;  // that is prepared; none: it exchanges a piece
  std::size_t taken = 0;              // elements of the source, by its step
  std::size_t piece = 0;              // of the operation's recipe
  Tag tag = 0;                        // of the piece's messages
  std::size_t at = 0;                 // the next step
  std::vector<SlotMessage> slots;
  std::vector<ItemRange> ranges;          // chunk after chunk, and in each in the order of items
  std::vector<std::size_t> first_ranges;  // of each chunk, and one more
  std::vector<float> sums;                // of the piece's chunks, one after the other
  std::vector<float> scratch;             // laid out as sums
  std::span<std::byte> arena;             // messages are encoded into it, one after the other
  std::size_t arena_used = 0;
  std::size_t unsent = 0;              // messages whose bytes the transport still needs
  std::vector<NotedSegment> segments;  // kept for its memory
  std::vector<Spent> spent;            // so far, by the piece or the preparation
  std::atomic<Phase> phase{Phase::ready};
  Status status = Status::ok;  // of the last computation
  std::string_view fault;      // what is wrong with the message, if its status does not tell

  // For a trace, else unused
  std::int64_t idle_since_ns = 0;  // when its last step ended
  std::size_t computed = 0;        // elements, by the last step
  std::uint32_t layer = 0;         // the first of the piece, a text of the recorder
  std::uint32_t more_layers = 0;   // of the piece, besides the first

  bool active() const { return operation != nullptr; }
  const std::vector<Step>& steps() const {
    return source ? routine->schedule.preparation : routine->schedule.steps;
  }
  const Step& step() const { return steps()[at]; }
  bool finished() const { return at == steps().size(); }
  bool waits_for_a_message() const {
    return active() && phase.load(std::memory_order_acquire) == Phase::ready && !finished() &&
           step().op == Op::receive;
  }
  /// Of its step.
  std::span<const ItemRange> ranges_of_step() const {
    const std::size_t first = first_ranges[step().first];
    return std::span(ranges).subspan(first, first_ranges[step().first + step().count] - first);
  }
  /// Of its step. 0: there is nothing to do.
  std::size_t elements() const;
  /// The step leaves nothing to do with the message in its slot.
  bool last_use() const { return !source && routine->lifetimes.last_use[at]; }

  /// How often the message of the step is sent, if it is for this step to count.
  std::uint32_t sends() const { return routine->lifetimes.sends[at]; }

  /// By which the numbers in the step's message have been divided.
  float divisor() const { return step().sum == Sum::partial ? 1 : operation->divisor; }

  TensorStatistics& spend(std::size_t tensor) {
    return spent.emplace_back(Spent{tensor, {}}).statistics;
  }

  /// Where the next message may be written.
  std::span<std::byte> room() const { return arena.subspan(arena_used); }
  /// Takes its first bytes for the message that was written there.
  std::span<std::byte> keep(std::size_t bytes) {
    const std::span<std::byte> kept = room().first(bytes);
    arena_used = std::min(arena.size(), arena_used + round_up(bytes, kMessageAlignment));
    return kept;
  }
};

/// Takes up a piece of the operation's recipe.
void begin(Lane& lane, std::shared_ptr<Operation> operation, std::size_t piece, Tag tag);

/// Takes up the preparation of a source.
void begin_preparation(Lane& lane, std::shared_ptr<Operation> operation, std::size_t source);

/// Executes the lane's step, which is neither send nor receive; of a long preparation a part, so
/// that whoever executes it is free again soon. `rank` is this rank's, for random numbers. Returns
/// what went wrong with a message, or ok.
Status execute(Lane& lane, std::uint32_t rank, std::uint32_t ranks, Seal seal) noexcept;

/// Whether the lane's step has been executed whole.
bool is_whole(const Lane& lane) noexcept;

}  // namespace gradwire::engine
