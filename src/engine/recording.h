// What lanes and operations do, as events of a trace.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/lane.h"
#include "trace/recorder.h"

namespace gradwire::engine {

/// Threads: whoever has the lane.
class Recording {
 public:
  explicit Recording(trace::Recorder& recorder);

  /// The lane has taken up a piece, or a tensor to prepare.
  void begun(Lane& lane) const noexcept;
  /// The lane's step is done, which began then. Its message is still in its slot.
  void step_done(Lane& lane, std::int64_t begin_ns) const noexcept;
  /// The same for steps that wait, and begin when the step before has ended.
  void step_done(Lane& lane) const noexcept { step_done(lane, lane.idle_since_ns); }
  void operation_done(const Operation& operation) const noexcept;

  /// Records what was under way and saves the trace. Returns the error with the name of the file,
  /// after a fifth of a second at the latest: a slower disk goes on meanwhile.
  Error failed(const Error& error, std::span<Lane> lanes,
               std::span<const std::shared_ptr<Operation>> operations) const;

 private:
  trace::Event step_of(const Lane& lane, std::int64_t begin_ns) const noexcept;
  trace::Event event_of(const Operation& operation) const noexcept;

  trace::Recorder& recorder_;
  std::array<trace::Text, kOps> ops_{};
  std::array<trace::Text, kCollectives> collectives_{};
};

}  // namespace gradwire::engine
