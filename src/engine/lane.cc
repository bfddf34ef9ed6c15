#include "engine/lane.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "tensor/cast.h"

namespace gradwire::engine {
namespace {

/// What lies in a step's chunks of one tensor.
struct Part {
  const Item& item;
  TensorView data;
  TensorView sum;      // may be the data, see `Lifetimes`
  std::size_t first;   // element of the tensor
  std::size_t sum_at;  // in the lane's sums
  bool apart;          // data and sum are not one, though their lifetimes allow it

  bool in_place() const { return sum.data == data.data; }
};

template <class Visit>
void each_part(Lane& lane, const Step& step, Visit visit) {
  Operation& operation = *lane.operation;
  for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
    const Range range = lane.chunks[chunk];
    const bool one_place = operation.routine->lifetimes.sum_in_data[chunk];
    operation.layout.each_part(range, [&](std::size_t index, std::size_t first, std::size_t count,
                                          std::size_t place) {
      const Item& item = operation.items[index];
      const TensorView data = item.view.slice(first, count);
      const std::size_t sum_at = lane.sum_starts[chunk] + (place - range.begin);
      const TensorView sum{lane.sums.data() + sum_at, count, Dtype::f32};
      const bool fits = data.dtype == Dtype::f32;
      visit(Part{item, data, one_place && fits ? data : sum, first, sum_at, one_place && !fits});
    });
  }
}

// ---------------------------------------------------------------------------------------------
// Feedback

std::span<float> residual_of(const Part& part) {
  return std::span(part.item.residual->numbers).subspan(part.first, part.data.count);
}

// ---------------------------------------------------------------------------------------------
// Statistics

double energy_of(std::span<const float> numbers) noexcept {
  std::array<double, 8> sums{};  // that do not wait for one another
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    sums[i % sums.size()] += double{numbers[i]} * double{numbers[i]};
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Energy of the numbers of a message, and of what it lacks of them.
Status measure(FrameReader& frame, std::size_t index, ConstTensorView numbers,
               std::span<float> scratch, TensorStatistics& found) noexcept {
  const TensorView rest{scratch.data(), scratch.size(), Dtype::f32};
  kernels::cast(numbers, rest, Into::assign);
  found.energy = energy_of(scratch);
  for (float& number : scratch) number = -number;
  const Status status = frame.decode_add(index, rest);
  found.squared_error = energy_of(scratch);
  return status;
}

/// What a message lacks of the numbers it was made of stays in the residual. A message of complete
/// sums is decoded into tensors by all ranks: what rounding takes there is lacking, too.
Status keep_rest(const Lane& lane, const Part& part, FrameReader& frame, std::size_t index,
                 bool sum, std::span<const float> wanted, std::span<float> scratch) noexcept {
  Residual& residual = *part.item.residual;
  const SegmentView message = frame.segment(index);
  const Dtype delivered = lane.encodes_finished() ? part.data.dtype : Dtype::f32;
  if (message.codec.traits().sparse) {
    residual.keep_all(part.first, wanted, lane.divisor());
    auto take = [&](std::span<const std::uint64_t> places, std::span<const float> sent) {
      const std::span<float> rounded = scratch.first(sent.size());
      std::ranges::copy(sent, rounded.begin());
      kernels::round_to(delivered, rounded);
      residual.take_sent(part.first, places, rounded, lane.divisor());
      if (!sum) residual.sent_since_fit += places.size();
    };
    return message.codec.each_sent(message.payload, message.dtype, message.count, take);
  }
  const Status status = frame.decode(index, {scratch.data(), scratch.size(), Dtype::f32});
  kernels::round_to(delivered, scratch);
  residual.keep(part.first, wanted, scratch, lane.divisor());
  return status;
}

/// What a message takes of a part, and what it lacks of it.
Status look_back(Lane& lane, const Part& part, FrameReader& frame, std::size_t index, bool sum,
                 TensorStatistics& found) noexcept {
  found.sent_bytes = lane.sends() * frame.segment(index).bytes;
  const bool measured = lane.operation->measure_error && !sum;
  const ConstTensorView numbers = lane.segments[index].values;
  const std::span<float> scratch(lane.scratch.data() + part.sum_at, numbers.count);
  if (part.item.residual == nullptr) {
    return measured ? measure(frame, index, numbers, scratch, found) : Status::ok;
  }
  const std::span<const float> wanted(static_cast<const float*>(numbers.data), numbers.count);
  if (measured) found.energy = energy_of(wanted);
  const Status status = keep_rest(lane, part, frame, index, sum, wanted, scratch);
  if (measured) found.squared_error = energy_of(residual_of(part));
  return status;
}

Status look_back(Lane& lane, const Step& step, std::span<const std::byte> message) noexcept {
  FrameReader frame = FrameReader::own(message);
  Status status = Status::ok;
  each_part(lane, step, [&](const Part& part) {
    if (status != Status::ok) return;
    const std::size_t index = lane.spent.size();  // one each
    TensorStatistics& found = lane.spend(part.item.tensor);
    status = look_back(lane, part, frame, index, step.place == Place::sum, found);
  });
  return status;
}

// ---------------------------------------------------------------------------------------------

Status encode(Lane& lane, const Step& step, std::uint32_t rank, std::uint32_t ranks, Seal seal) {
  Operation& operation = *lane.operation;
  const bool sum = step.place == Place::sum;
  lane.segments.clear();
  each_part(lane, step, [&](const Part& part) {
    // Sums draw other numbers than the data they are made of.
    const RandomKey key{operation.seed, operation.step, part.item.name, sum ? ranks + rank : rank};
    if (sum) {
      lane.segments.push_back({part.item.sums_codec, part.sum, {key, part.first}});
    } else {
      const ConstTensorView numbers = part.item.input().slice(part.first, part.data.count);
      lane.segments.push_back(
          {part.item.codec, numbers, {key, part.first, part.item.notes, part.item.turn}});
    }
  });
  const Encoded encoded = encode_frame(lane.segments, lane.room(), seal);
  if (encoded.status != Status::ok) return encoded.status;
  const std::span<std::byte> message = lane.keep(encoded.bytes);
  lane.slots[step.slot] = {message, std::nullopt, true};
  return look_back(lane, step, message);
}

Status decode(Lane& lane, const Step& step, Seal least) noexcept {
  const SlotMessage& slot = lane.slots[step.slot];
  FrameReader frame =
      slot.made_here ? FrameReader::own(slot.bytes) : FrameReader(slot.bytes, least);
  if (frame.status() != Status::ok) return frame.status();
  const bool add = step.op == Op::decode_add;
  const bool sum = add || step.place == Place::sum;
  const bool echo = lane.operation->routine->lifetimes.echo[lane.at];
  const std::uint32_t passed_on = lane.sends();
  std::size_t index = 0;
  Status status = Status::ok;
  each_part(lane, step, [&](const Part& part) {
    if (status != Status::ok) return;
    const std::size_t i = index++;
    const bool replaced = part.apart || part.item.residual != nullptr;  // what the echo is of
    if (echo && !replaced && part.item.codec.traits().lossless) return;
    status = i >= frame.segment_count() ? Status::count_mismatch
             : add                      ? frame.decode_add(i, part.sum)
                                        : frame.decode(i, sum ? part.sum : part.data);
    if (passed_on == 0 || status != Status::ok) return;
    lane.spend(part.item.tensor).sent_bytes = passed_on * frame.segment(i).bytes;
  });
  if (status == Status::ok && index != frame.segment_count()) return Status::count_mismatch;
  return status;
}

void divide(TensorView sum, float divisor) noexcept {
  const std::span<float> numbers(static_cast<float*>(sum.data), sum.count);
  const float scale = 1 / divisor;
  for (float& number : numbers) number *= scale;
}

/// One's own numbers enter a sum as they are, with what was held back of them before.
void enter(const Part& part, Into into) noexcept {
  kernels::cast(part.item.input().slice(part.first, part.data.count), part.sum, into);
  std::ranges::fill(residual_of(part), 0.0f);
}

/// Complete sums go into the tensor. Of all ranks that store them, the first keeps what rounding
/// takes, if somebody keeps anything.
void store(const Part& part, float divisor, std::uint32_t rank) noexcept {
  kernels::cast(part.sum, part.data, Into::assign);
  if (part.item.residual == nullptr || part.data.dtype == Dtype::f32 || rank != 0) return;
  const std::span<const float> sums(static_cast<const float*>(part.sum.data), part.sum.count);
  part.item.residual->keep_rounding(part.first, sums, part.data, divisor);
}

void compute(Lane& lane, const Step& step, std::uint32_t rank) noexcept {
  const float divisor = lane.operation->divisor;
  if (step.op == Op::finish && divisor == 1) return;
  each_part(lane, step, [&](const Part& part) {
    if (step.op == Op::finish) return divide(part.sum, divisor);
    const Into into = step.op == Op::add ? Into::add : Into::assign;
    if (part.item.residual != nullptr && step.op != Op::store) return enter(part, into);
    if (part.in_place()) return;
    if (step.op == Op::store) return store(part, divisor, rank);
    kernels::cast(part.data, part.sum, into);
  });
}

}  // namespace

void begin(Lane& lane, std::shared_ptr<Operation> operation, std::size_t piece, Tag tag) {
  const Schedule& schedule = operation->routine->schedule;
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
  if (lane.sums.size() < total) {
    lane.sums.resize(total);
    lane.scratch.resize(total);
  }
  lane.operation = std::move(operation);
}

Status execute(Lane& lane, std::uint32_t rank, std::uint32_t ranks, Seal seal) noexcept {
  const Step& step = lane.step();
  lane.spent.clear();
  switch (step.op) {
    case Op::encode:
      return encode(lane, step, rank, ranks, seal);
    case Op::decode:
    case Op::decode_add:
      return decode(lane, step, seal);
    default:
      compute(lane, step, rank);
      return Status::ok;
  }
}

}  // namespace gradwire::engine
