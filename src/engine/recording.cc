#include "engine/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace gradwire::engine {
namespace {

using trace::Event;
using trace::Kind;
using trace::Message;
using trace::State;

// With a disk, when callers wait for an error. All that a recorder keeps is written in 64 ms.
constexpr auto kPatience = std::chrono::milliseconds(200);

/// Those of its message, or of the numbers it computes with.
std::uint64_t bytes_of(const Lane& lane) noexcept {
  switch (lane.step().op) {
    case Op::encode:
    case Op::decode:
    case Op::decode_add:
    case Op::send:
    case Op::receive:
      return lane.slots[lane.step().slot].bytes.size();
    default:
      return lane.computed * sizeof(float);
  }
}

Message message_of(Op op) noexcept {
  return op == Op::send ? Message::sent : op == Op::receive ? Message::received : Message::none;
}

std::int64_t nanoseconds(Clock::time_point time) noexcept {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

Recording::Recording(trace::Recorder& recorder) : recorder_(recorder) {
  for (std::size_t i = 0; i < kOps; ++i) ops_[i] = recorder.text(name_of(static_cast<Op>(i)));
  for (std::size_t i = 0; i < kCollectives; ++i) {
    collectives_[i] = recorder.text(name_of(static_cast<Collective>(i)));
  }
}

void Recording::begun(Lane& lane) const noexcept {
  const Operation& operation = *lane.operation;
  lane.idle_since_ns = trace::now_ns();
  std::set<std::size_t> sources;
  if (lane.source) sources.insert(*lane.source);
  if (!lane.source) {
    for (const ItemRange& range : lane.ranges) sources.insert(operation.items[range.item].source);
  }
  lane.layer = sources.empty() ? 0 : operation.layers[*sources.begin()];
  lane.more_layers = sources.empty() ? 0 : static_cast<std::uint32_t>(sources.size() - 1);
}

Event Recording::step_of(const Lane& lane, std::int64_t begin_ns) const noexcept {
  const Op op = lane.step().op;
  return {.begin_ns = begin_ns,
          .end_ns = trace::now_ns(),
          .number = lane.source ? trace::kNoPiece : number_of(lane.tag),
          .bytes = bytes_of(lane),
          .what = ops_[static_cast<std::size_t>(op)],
          .layer = lane.layer,
          .more_layers = lane.more_layers,
          .peer = lane.step().peer,
          .at = static_cast<std::uint32_t>(lane.at),
          .lane = lane.number,
          .kind = Kind::step,
          .message = message_of(op)};
}

void Recording::step_done(Lane& lane, std::int64_t begin_ns) const noexcept {
  const Event event = step_of(lane, begin_ns);
  lane.idle_since_ns = event.end_ns;
  recorder_.add(event);
}

Event Recording::event_of(const Operation& operation) const noexcept {
  const auto& layers = operation.layers;
  return {.begin_ns = nanoseconds(operation.work->begun),
          .end_ns = trace::now_ns(),
          .number = operation.step,
          .bytes = operation.work->statistics.sent_bytes,
          .what = collectives_[static_cast<std::size_t>(operation.collective)],
          .layer = layers.empty() ? 0 : layers.front(),
          .more_layers = static_cast<std::uint32_t>(layers.empty() ? 0 : layers.size() - 1),
          .kind = Kind::operation};
}

void Recording::operation_done(const Operation& operation) const noexcept {
  recorder_.add(event_of(operation));
}

Error Recording::failed(const Error& error, std::span<Lane> lanes,
                        std::span<const std::shared_ptr<Operation>> operations) const {
  const auto add_unfinished = [&](Event event) {
    event.state = State::unfinished;
    recorder_.add(event);
  };
  for (const Lane& lane : lanes) {
    const bool under_way = lane.active() && !lane.finished();
    if (under_way) add_unfinished(step_of(lane, lane.idle_since_ns));
  }
  for (const auto& operation : operations) add_unfinished(event_of(*operation));
  const auto failure = recorder_.save_within(kPatience);
  const std::string what =
      !failure ? fmt::format("is being written to {}; gradwire trace shows it", recorder_.path())
      : failure->empty() ? fmt::format("is in {}; gradwire trace shows it", recorder_.path())
                         : fmt::format("is lost: {}", *failure);
  return {error.code(), fmt::format("{}. What this rank did last {}", error.what(), what)};
}

}  // namespace gradwire::engine
