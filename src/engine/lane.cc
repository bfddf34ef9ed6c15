#include "engine/lane.h"

#include <algorithm>
#include <cstring>

namespace gradwire::engine {
namespace {

constexpr std::size_t kMessageAlignment = 64;

/// Calls visit(item, its numbers in data, the same place in sum, first element) for the parts of a
/// step's chunks.
template <class Visit>
void each_part(Lane& lane, const Step& step, Visit visit) {
  Operation& operation = *lane.operation;
  for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
    const Range range = lane.chunks[chunk];
    operation.layout.each_part(
        range, [&](std::size_t index, std::size_t first, std::size_t count, std::size_t place) {
          const Item& item = operation.items[index];
          float* const sum = lane.sums.data() + lane.sum_starts[chunk] + (place - range.begin);
          visit(item, item.view.slice(first, count), TensorView{sum, count, Dtype::f32}, first);
        });
  }
}

const Codec& exact() {
  static const Codec kExact = Codec::parse("none");
  return kExact;
}

/// Numbers of one dtype into another: what `none` does, without a frame.
void convert(ConstTensorView from, TensorView to, bool add) noexcept {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(from.data),
                                         from.count * size_of(from.dtype));
  add ? exact().decode_add(bytes, from.dtype, to) : exact().decode(bytes, from.dtype, to);
}

Status encode(Lane& lane, const Step& step, std::uint32_t rank, std::uint32_t ranks, Seal seal) {
  Operation& operation = *lane.operation;
  const bool sum = step.place == Place::sum;
  lane.segments.clear();
  each_part(lane, step, [&](const Item& item, TensorView data, TensorView sums, std::size_t first) {
    // Sums draw other numbers than the data they are made of.
    const RandomKey key{operation.seed, operation.step, item.name, sum ? ranks + rank : rank};
    lane.segments.push_back({sum ? item.codec : item.fitted, sum ? sums : data, {key, first}});
  });
  const std::span<std::byte> room = lane.arena.subspan(lane.arena_used);
  const Encoded encoded = encode_frame(lane.segments, room, seal);
  if (encoded.status != Status::ok) return encoded.status;
  lane.slots[step.slot] = {room.first(encoded.bytes), std::nullopt};
  lane.arena_used =
      std::min(lane.arena.size(), lane.arena_used + round_up(encoded.bytes, kMessageAlignment));
  return Status::ok;
}

Status decode(Lane& lane, const Step& step, Seal least) noexcept {
  FrameReader frame(lane.slots[step.slot].bytes, least);
  if (frame.status() != Status::ok) return frame.status();
  const bool add = step.op == Op::decode_add;
  const bool sum = add || step.place == Place::sum;
  std::size_t index = 0;
  Status status = Status::ok;
  each_part(lane, step, [&](const Item&, TensorView data, TensorView sums, std::size_t) {
    if (status != Status::ok) return;
    const std::size_t i = index++;
    status = i >= frame.segment_count() ? Status::count_mismatch
             : add                      ? frame.decode_add(i, sums)
                                        : frame.decode(i, sum ? sums : data);
  });
  if (status == Status::ok && index != frame.segment_count()) return Status::count_mismatch;
  return status;
}

void compute(Lane& lane, const Step& step) noexcept {
  each_part(lane, step, [&](const Item&, TensorView data, TensorView sums, std::size_t) {
    if (step.op == Op::store) {
      convert(sums, data, false);
    } else {
      convert(data, sums, step.op == Op::add);
    }
  });
}

}  // namespace

void begin(Lane& lane, std::shared_ptr<Operation> operation, std::size_t piece, Tag tag) {
  const Schedule& schedule = *operation->schedule;
  lane.piece = piece;
  lane.tag = tag;
  lane.at = 0;
  lane.arena_used = 0;
  lane.slots.assign(schedule.slots, {});
  lane.chunks.clear();
  lane.sum_starts.clear();
  std::size_t total = 0;
  for (std::uint32_t chunk = 0; chunk < schedule.chunks; ++chunk) {
    lane.chunks.push_back(operation->cut.chunk(piece, chunk, schedule.chunks));
    lane.sum_starts.push_back(total);
    total += lane.chunks.back().size();
  }
  if (lane.sums.size() < total) lane.sums.resize(total);
  lane.operation = std::move(operation);
}

Status execute(Lane& lane, std::uint32_t rank, std::uint32_t ranks, Seal seal) noexcept {
  const Step& step = lane.step();
  switch (step.op) {
    case Op::encode:
      return encode(lane, step, rank, ranks, seal);
    case Op::decode:
    case Op::decode_add:
      return decode(lane, step, seal);
    default:
      compute(lane, step);
      return Status::ok;
  }
}

}  // namespace gradwire::engine
