#include "engine/lane.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

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
      const bool fits = data.dtype == Dtype::f32 && item.residual == nullptr;
      visit(Part{item, data, one_place && fits ? data : sum, first, sum_at, one_place && !fits});
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

// ---------------------------------------------------------------------------------------------
// Feedback

std::span<float> residual_of(std::vector<float>& residual, const Part& part) {
  return std::span(residual).subspan(part.first, part.data.count);
}

/// Adds a residual to numbers and empties it: they carry it from now on. The numbers may have been
/// divided, residuals are not.
void move_into(std::span<float> residual, float* numbers, float divisor) noexcept {
  const float scale = 1 / divisor;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    numbers[i] += residual[i] * scale;
    residual[i] = 0;
  }
}

/// The numbers to encode for a part with feedback, as floats that carry its residuals.
TensorView with_residuals(Lane& lane, const Part& part, bool sum) {
  Residual& residual = *part.item.residual;
  TensorView numbers = part.sum;
  if (!sum) {
    numbers.data = lane.adjusted.data() + part.sum_at;
    convert(part.data, numbers, false);
    move_into(residual_of(residual.sent, part), static_cast<float*>(numbers.data), 1);
  }
  move_into(residual_of(residual.summed, part), static_cast<float*>(numbers.data), lane.divisor());
  return numbers;
}

/// What the message lacks of the numbers it was made of.
Status keep_rest(FrameReader& frame, std::size_t index, std::span<const float> numbers,
                 float divisor, std::span<float> kept) noexcept {
  const Status status = frame.decode(index, {kept.data(), kept.size(), Dtype::f32});
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const float rest = (numbers[i] - kept[i]) * divisor;
    kept[i] = rest - rest == 0 ? rest : 0;  // a NaN has arrived, and must not come again forever
  }
  return status;
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
  convert(numbers, rest, false);
  found.energy = energy_of(scratch);
  for (float& number : scratch) number = -number;
  const Status status = frame.decode_add(index, rest);
  found.squared_error = energy_of(scratch);
  return status;
}

/// What a message takes of a part, and what it lacks of it.
Status look_back(Lane& lane, const Part& part, FrameReader& frame, std::size_t index, bool sum,
                 TensorStatistics& found) noexcept {
  found.sent_bytes = lane.sends() * frame.segment(index).bytes;
  const bool measured = lane.operation->measure_error && !sum;
  const ConstTensorView numbers = lane.segments[index].values;
  if (part.item.residual == nullptr) {
    const std::span<float> scratch(lane.adjusted.data() + part.sum_at, numbers.count);
    return measured ? measure(frame, index, numbers, scratch, found) : Status::ok;
  }
  Residual& residual = *part.item.residual;
  const std::span<float> kept = residual_of(sum ? residual.summed : residual.sent, part);
  const std::span<const float> wanted(static_cast<const float*>(numbers.data), numbers.count);
  const Status status = keep_rest(frame, index, wanted, lane.divisor(), kept);
  if (measured) {
    found.energy = energy_of(wanted);
    found.squared_error = energy_of(kept);
  }
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
    const bool keeps = part.item.residual != nullptr;
    const TensorView numbers = keeps ? with_residuals(lane, part, sum) : sum ? part.sum : part.data;
    if (sum) {
      lane.segments.push_back({part.item.codec, numbers, {key, part.first}});
    } else {
      lane.segments.push_back({part.item.fitted, numbers, {key, part.first, part.item.notes}});
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
    if (echo && !part.apart && part.item.codec.traits().lossless) return;
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

/// One's own numbers enter a sum as they are, and what was held back of them before.
void compute(Lane& lane, const Step& step) noexcept {
  const float divisor = lane.operation->divisor;
  if (step.op == Op::finish && divisor == 1) return;
  each_part(lane, step, [&](const Part& part) {
    if (step.op == Op::finish) return divide(part.sum, divisor);
    if (part.in_place()) return;
    if (step.op == Op::store) return convert(part.sum, part.data, false);
    convert(part.data, part.sum, step.op == Op::add);
    if (part.item.residual == nullptr) return;
    move_into(residual_of(part.item.residual->sent, part), static_cast<float*>(part.sum.data), 1);
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
    lane.adjusted.resize(total);
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
      compute(lane, step);
      return Status::ok;
  }
}

}  // namespace gradwire::engine
