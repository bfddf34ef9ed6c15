// What happened and when on one rank: the latest events of a communicator, in a ring of fixed size.
//
// Who may record holds a pointer, which is null unless a trace was asked for: without one, tracing
// costs a branch. Events have a fixed size and name texts by number. When the ring is full, each
// event takes the place of the oldest: memory is bounded, and what is kept is what happened last.
//
// Threads: any. Failure: only the constructor throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gradwire::trace {

/// Nanoseconds of the steady clock, which all times of events are.
std::int64_t now_ns() noexcept;

/// A text by its number, see `Recorder::text`. 0 is the empty one.
using Text = std::uint32_t;

/// Events of one kind are shown together.
enum class Kind : std::uint8_t {
  step,       ///< of a lane: encode, send, …
  operation,  ///< from the call to its end
  hook,       ///< a call by DDP or FSDP2
  future,     ///< from the hook to the completed future
};
inline constexpr std::uint8_t kKinds = 4;

enum class Message : std::uint8_t { none, sent, received };
enum class State : std::uint8_t { done, unfinished };

/// The number of steps that prepare a whole tensor, before it is cut into pieces.
inline constexpr std::uint64_t kNoPiece = ~std::uint64_t{0};

struct Event {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  /// Of a step: the piece, whose number is the same on all ranks, or `kNoPiece`. Else: the training
  /// step.
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  Text what = 0;                  ///< "encode", "all_reduce", …
  Text layer = 0;                 ///< the first of those concerned
  std::uint32_t more_layers = 0;  ///< besides the first
  std::uint32_t peer = 0;         ///< of a message
  std::uint32_t at = 0;           ///< of a step: its place in the schedule
  std::uint8_t lane = 0;          ///< of a step
  Kind kind = Kind::step;
  Message message = Message::none;
  State state = State::done;
};
static_assert(sizeof(Event) == 56);  // as in files

/// Whose events these are.
struct Origin {
  std::uint64_t communicator = 0;    ///< a number that its ranks have in common, and no other ranks
  std::int64_t clock_offset_ns = 0;  ///< what this rank's steady clock is ahead of rank 0's
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::int64_t job_rank = -1;  ///< of a rank of a group: its number in the job; -1: the same
};

/// Makes `directory` if it is missing. Throws `Error(io)` if no file can be made in it; asked
/// before ranks meet, that keeps none of them waiting.
void make_trace_folder(const std::string& directory);

class Recorder {
 public:
  /// 28 MiB, in use from the beginning, so that no page faults fall into what is recorded.
  static constexpr std::size_t kEvents = std::size_t{1} << 19;

  /// Makes and checks `directory`, see `make_trace_folder`.
  Recorder(const std::string& directory, const Origin& origin, std::size_t capacity = kEvents);

  /// The number of a text; the same text has the same. Beyond 65536 texts all others are "…".
  Text text(std::string_view text);

  void add(const Event& event) noexcept;

  const std::string& path() const noexcept { return path_; }

  /// Writes all that is kept to `path()`, in place of what was there. Meanwhile others may record.
  /// Returns what went wrong, or an empty text.
  std::string save() const noexcept;

  /// The same in a thread of its own, so that a disk that is slow or gone does not hold the caller
  /// up for longer than `patience`. Nothing: it goes on, and the destructor waits for it. For one
  /// caller.
  std::optional<std::string> save_within(std::chrono::milliseconds patience) noexcept;

 private:
  struct Kept {
    std::vector<Event> events;  // oldest first
    std::vector<std::string> texts;
    std::uint64_t overwritten = 0;
  };
  Kept kept() const;

  const std::string path_;
  const Origin origin_;
  mutable std::mutex file_mutex_;  // guards the file; taken before mutex_
  mutable std::mutex mutex_;
  std::vector<Event> ring_;                        // guarded by mutex_
  std::uint64_t added_ = 0;                        // guarded by mutex_
  std::vector<std::string> texts_;                 // guarded by mutex_
  std::unordered_map<std::string, Text> numbers_;  // guarded by mutex_
  std::future<std::string> saving_;                // the last: it uses all others
};

}  // namespace gradwire::trace
