#include "engine/lane.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random_stream.h"
#include "codec/each_sent.h"
#include "codec/registry.h"
#include "tensor/arithmetic.h"
#include "tensor/cast.h"

namespace gradwire::engine {
namespace {

/// Elements that are measured or taken up at once: some tenths of a millisecond.
constexpr std::size_t kTakenAtOnce = std::size_t{1} << 17;

// ---------------------------------------------------------------------------------------------
// Preparation

std::size_t elements_of(const Source& source) {
  std::size_t elements = 0;
  for (const TensorView& view : source.input) elements += view.count;
  return elements;
}

/// Calls visit(first element, numbers) for the source's next elements, which end with their part.
template <class Visit>
void take_next(Lane& lane, const Source& source, Visit visit) {
  std::size_t start = 0;
  for (const TensorView& view : source.input) {
    if (lane.taken < start + view.count) {
      const std::size_t first = lane.taken - start;
      const std::size_t count = std::min(kTakenAtOnce, view.count - first);
      visit(lane.taken, view.slice(first, count));
      lane.taken += count;
      return;
    }
    start += view.count;
  }
}

void fit(Source& source) noexcept {
  if (Residual* residual = source.residual()) {
    source.codec = residual->fit(source.codec, source.notes, source.feedback.reuse);
  } else if (source.input.size() == 1) {
    source.codec = fit(source.codec, source.input[0], source.notes);
  } else {
    const std::vector<ConstTensorView> places(source.input.begin(), source.input.end());
    source.codec = source.codec.fit(places);
  }
}

void prepare(Lane& lane) noexcept {
  Source& source = lane.operation->sources[*lane.source];
  const Op op = lane.step().op;
  if (op == Op::fit) {
    fit(source);
    // Notes add up to the energy; where there are none, steps find it out.
    const double energy = std::accumulate(source.notes.begin(), source.notes.end(), 0.0);
    if (source.counted && energy != 0) lane.spend(*lane.source).energy = energy;
    return;
  }
  Residual* const residual = source.residual();
  if (residual == nullptr) return;
  take_next(lane, source, [&](std::size_t first, ConstTensorView numbers) {
    if (op == Op::measure) {
      source.finite = kernels::all_finite(numbers);
    } else {
      residual->accumulate(first, numbers, source.feedback);
    }
  });
}

// ---------------------------------------------------------------------------------------------

/// What lies in a step's chunks of one item.
struct Part {
  const Item& item;
  const Source& source;
  ConstTensorView input;
  TensorView sum;
  TensorView output;
  std::size_t first;  // element of the item
  std::uint32_t chunk;
  std::size_t sums_at;  // in the lane's sums

  /// What a message of this place is made of.
  ConstTensorView numbers(Place place) const { return place == Place::sum ? sum : input; }
  Residual* residual() const { return source.residual(); }
  std::size_t kept_at() const { return item.first + first; }
  /// Of its input, for a step that reads it: 0 where it is not asked for, or the fitting knows it.
  double energy() const {
    return source.counted && source.notes.empty() ? kernels::quick_energy(input) : 0;
  }
};

template <class Visit>
void each_part(Lane& lane, Visit visit) {
  const Operation& operation = *lane.operation;
  for (const ItemRange& range : lane.ranges_of_step()) {
    const Item& item = operation.items[range.item];
    const TensorView output = item.view.slice(range.first, range.count);
    const TensorView sum{lane.sums.data() + range.sums_at, range.count, Dtype::f32};
    const bool in_output = range.one_place && output.dtype == Dtype::f32;
    visit(Part{item, operation.sources[item.source],
               operation.input(item).slice(range.first, range.count), in_output ? output : sum,
               output, range.first, range.chunk, range.sums_at});
  }
}

// ---------------------------------------------------------------------------------------------
// Messages

Status encode(Lane& lane, std::uint32_t rank, std::uint32_t ranks, Seal seal) noexcept {
  const Operation& operation = *lane.operation;
  const Step& step = lane.step();
  const bool sum = step.place == Place::sum;
  lane.segments.clear();
  each_part(lane, [&](const Part& part) {
    // Sums draw other numbers than the inputs they are made of; replicas draw the same everywhere.
    const std::uint32_t who = step.replicated ? 2 * ranks : sum ? ranks + rank : rank;
    const RandomKey key{operation.seed, operation.step, part.item.name, who};
    const Source& source = part.source;
    if (step.exact) {
      lane.segments.push_back({{exact_codec(), part.numbers(step.place), {key, part.first}}});
    } else if (sum) {
      lane.segments.push_back({{source.sums_codec, part.sum, {key, part.first}}});
    } else {
      lane.segments.push_back(
          {{source.codec, part.input, {key, part.first, source.turn}}, source.notes});
    }
  });
  const Encoded encoded = encode_frame(lane.segments, lane.room(), seal);
  if (encoded.status != Status::ok) return encoded.status;
  const std::span<std::byte> message = lane.keep(encoded.bytes);
  lane.slots[step.slot] = {message, std::nullopt, true};
  FrameReader frame = FrameReader::own(message);
  std::size_t index = 0;
  each_part(lane, [&](const Part& part) {
    TensorStatistics& spent = lane.spend(part.item.source);
    spent.sent_bytes = lane.sends() * frame.segment(index++).bytes;
    if (!sum) spent.energy = part.energy();
  });
  return Status::ok;
}

/// Whether a peer may have encoded a segment of the source by this codec. Settings may differ, as
/// each rank fits its own.
bool is_expected(const Codec& codec, const Source& source, const Routine& routine) noexcept {
  const CodecKind* const kind = &CodecAccess::kind(codec);
  return kind == &CodecAccess::kind(source.codec) ||
         kind == &CodecAccess::kind(source.sums_codec) ||
         (routine.has_exact && kind == &CodecAccess::kind(exact_codec()));
}

Status decode(Lane& lane, Seal least) noexcept {
  const Step& step = lane.step();
  const SlotMessage& slot = lane.slots[step.slot];
  FrameReader frame =
      slot.made_here ? FrameReader::own(slot.bytes) : FrameReader(slot.bytes, least);
  if (frame.status() != Status::ok) return frame.status();
  const bool add = step.op == Op::decode_add;
  const std::uint32_t passed_on = lane.sends();
  std::size_t index = 0;
  Status status = Status::ok;
  each_part(lane, [&](const Part& part) {
    if (status != Status::ok) return;
    const std::size_t i = index++;
    if (i >= frame.segment_count()) {
      status = Status::count_mismatch;
      return;
    }
    if (!is_expected(frame.segment(i).codec, part.source, *lane.routine)) {
      lane.fault = "it is not encoded by the codec of this tensor's way";
      status = Status::corrupt;
      return;
    }
    status = add ? frame.decode_add(i, part.sum)
                 : frame.decode(i, step.place == Place::sum ? part.sum : part.output);
    if (passed_on == 0 || status != Status::ok) return;
    lane.spend(part.item.source).sent_bytes = passed_on * frame.segment(i).bytes;
  });
  if (status == Status::ok && index != frame.segment_count()) return Status::count_mismatch;
  return status;
}

/// A segment of a message made here, and what it was made of.
struct Made {
  FrameReader& frame;
  std::size_t index;
  ConstTensorView numbers;
};

/// Calls visit(part, made) for the segments of the step's message, until one is not ok.
template <class Visit>
Status each_made(Lane& lane, Visit visit) noexcept {
  const Step& step = lane.step();
  FrameReader frame = FrameReader::own(lane.slots[step.slot].bytes);
  std::size_t index = 0;
  Status status = Status::ok;
  each_part(lane, [&](const Part& part) {
    const std::size_t i = index++;
    if (status == Status::ok) status = visit(part, Made{frame, i, part.numbers(step.place)});
  });
  return status;
}

/// What others decode of a message made here. Where that is what it was made of, nothing is
/// decoded.
Status echo(Lane& lane) noexcept {
  return each_made(lane, [](const Part& part, const Made& made) {
    if (!made.frame.segment(made.index).codec.traits().lossless) {
      return made.frame.decode(made.index, part.output);
    }
    if (made.numbers.data != part.output.data) {
      kernels::cast(made.numbers, part.output, Into::assign);
    }
    return Status::ok;
  });
}

// ---------------------------------------------------------------------------------------------
// What is kept

/// One of so many messages is in the sample. A prime: whatever the distance between the steps of a
/// tensor, all its messages have their turns.
constexpr std::uint64_t kSampled = 31;

bool is_sampled(const Operation& operation, const Item& item, std::size_t first) noexcept {
  const std::uint64_t place = mix64(item.name + first) % kSampled;
  return operation.sources[item.source].lossy && (operation.turn + place) % kSampled == 0;
}

/// Whether somebody wants to know what the step's message lacks of these numbers.
bool is_measured(const Lane& lane, const Item& item, std::size_t first) noexcept {
  return lane.routine->lifetimes.measured[lane.at] &&
         (lane.operation->measure_error || is_sampled(*lane.operation, item, first));
}

std::uint64_t not_finite(std::span<const float> numbers) noexcept {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(numbers, [](float x) { return !std::isfinite(x); }));
}

/// Energy of the numbers of a message, and of what it lacks of them.
Status measure(const Made& made, std::span<float> scratch, TensorStatistics& found) noexcept {
  const TensorView rest{scratch.data(), scratch.size(), Dtype::f32};
  kernels::cast(made.numbers, rest, Into::assign);
  found.measured_energy = kernels::energy(scratch);
  const std::uint64_t before = std::isfinite(found.measured_energy) ? 0 : not_finite(scratch);
  kernels::scale(scratch, -1);
  const Status status = made.frame.decode_add(made.index, rest);
  found.squared_error = kernels::energy(scratch);
  const std::uint64_t after = std::isfinite(found.squared_error) ? 0 : not_finite(scratch);
  found.saturated = after - before;
  return status;
}

/// What a message lacks of the numbers it was made of stays in the residual. A message of complete
/// sums is decoded into tensors by all ranks: what rounding takes there is lacking, too.
Status keep_rest(const Lane& lane, const Part& part, const Made& made,
                 std::span<float> scratch) noexcept {
  Residual& residual = *part.residual();
  const SegmentView message = made.frame.segment(made.index);
  const Dtype delivered = lane.step().sum == Sum::delivered ? part.output.dtype : Dtype::f32;
  const std::span<const float> wanted(static_cast<const float*>(made.numbers.data),
                                      made.numbers.count);
  // Of sums this rank may have kept something before, when its numbers entered them.
  const bool sum = lane.step().place == Place::sum;
  const Into into = sum ? Into::add : Into::assign;
  if (message.codec.traits().sparse) {
    residual.keep_all(part.kept_at(), wanted, lane.divisor(), into);
    auto take = [&](std::span<const std::uint64_t> places, std::span<const float> sent) {
      const std::span<float> rounded = scratch.first(sent.size());
      std::ranges::copy(sent, rounded.begin());
      kernels::round_to(delivered, rounded);
      residual.take_sent(part.kept_at(), places, rounded, lane.divisor());
      if (!sum) residual.sent_since_fit += places.size();
    };
    return each_sent(message.codec, message.payload, message.dtype, message.count, take);
  }
  const Status status = made.frame.decode(made.index, {scratch.data(), scratch.size(), Dtype::f32});
  kernels::round_to(delivered, scratch);
  residual.keep(part.kept_at(), wanted, scratch, lane.divisor(), into);
  if (!lane.step().exact) residual.stop(part.kept_at(), scratch.size());
  return status;
}

/// What is kept of a part, once no later step changes it.
void count_kept(Lane& lane, const Part& part) {
  const Residual& residual = *part.residual();
  if (residual.ends || lane.routine->lifetimes.last_kept[part.chunk] != lane.at) return;
  lane.spend(part.item.source).residual_energy =
      kernels::quick_energy({residual.numbers.data() + part.kept_at(), part.input.count});
}

Status keep_part(Lane& lane, const Part& part, const Made& made) noexcept {
  const std::span<float> scratch(lane.scratch.data() + part.sums_at, made.numbers.count);
  Status status = Status::ok;
  if (is_measured(lane, part.item, part.first)) {
    status = measure(made, scratch, lane.spend(part.item.source));
  }
  if (status != Status::ok || part.residual() == nullptr) return status;
  status = keep_rest(lane, part, made, scratch);
  count_kept(lane, part);
  return status;
}

Status keep(Lane& lane) noexcept {
  return each_made(lane,
                   [&](const Part& part, const Made& made) { return keep_part(lane, part, made); });
}

// ---------------------------------------------------------------------------------------------
// Numbers

/// This rank's numbers enter a sum as they are, so that nothing of them is held back.
void enter(Lane& lane, const Part& part, Into into) noexcept {
  if (part.source.counted) lane.spend(part.item.source).energy = part.energy();
  if (part.input.data != part.sum.data) kernels::cast(part.input, part.sum, into);
  if (Residual* residual = part.residual()) residual->clear(part.kept_at(), part.input.count);
}

void finish(Lane& lane, const Part& part) noexcept {
  const float divisor = lane.operation->divisor;
  if (divisor != 1) {
    kernels::scale({static_cast<float*>(part.sum.data), part.sum.count}, 1 / divisor);
  }
  if (!lane.step().counts || !part.source.counted) return;
  lane.spend(part.item.source).sum_energy = kernels::quick_energy(part.sum);
}

void store(const Part& part) noexcept {
  if (part.sum.data != part.output.data) kernels::cast(part.sum, part.output, Into::assign);
}

void keep_rounding(Lane& lane, const Part& part) noexcept {
  if (part.residual() == nullptr) return;
  if (part.output.dtype != Dtype::f32) {
    const std::span<const float> sums(static_cast<const float*>(part.sum.data), part.sum.count);
    part.residual()->keep_rounding(part.kept_at(), sums, part.output, lane.operation->divisor);
  }
  count_kept(lane, part);
}

void compute(Lane& lane) noexcept {
  const Op op = lane.step().op;
  each_part(lane, [&](const Part& part) {
    switch (op) {
      case Op::load:
        return enter(lane, part, Into::assign);
      case Op::add:
        return enter(lane, part, Into::add);
      case Op::finish:
        return finish(lane, part);
      case Op::store:
        return store(part);
      default:
        return keep_rounding(lane, part);
    }
  });
}

}  // namespace

std::size_t Lane::elements() const {
  const Op op = step().op;
  if (source) {
    const Source& prepared = operation->sources[*source];
    if (op == Op::fit) return elements_of(prepared);
    if (prepared.residual() == nullptr) return 0;
    return std::min(kTakenAtOnce, elements_of(prepared) - taken);
  }
  const bool counts = operation->counts && step().counts;
  if (op == Op::finish && operation->divisor == 1 && !counts) return 0;
  if (op == Op::keep_rounding && !operation->keeps) return 0;
  const bool samples = op == Op::keep && !operation->keeps;
  if (samples && !operation->samples) return 0;
  std::size_t total = 0;
  for (const ItemRange& range : ranges_of_step()) {
    if (samples && !is_measured(*this, operation->items[range.item], range.first)) continue;
    total += range.count;
  }
  return total;
}

namespace {

/// In the order of the call, whatever lines its tensors stand in: where ranks differ in their ways,
/// each segment still meets its tensor, and the difference is seen.
void add_ranges(Lane& lane, const Recipe& recipe, const Piece& piece, std::uint32_t chunk) {
  const std::uint32_t chunks = piece.routine->schedule.chunks;
  const std::size_t first = lane.ranges.size();
  for (const Section& section : piece.sections) {
    const Line& line = recipe.lines[section.line];
    const auto add = [&](std::size_t index, std::size_t begin, std::size_t count, std::size_t) {
      lane.ranges.push_back({.item = line.items[index],
                             .chunk = chunk,
                             .first = begin,
                             .count = count,
                             .sums_at = 0,
                             .one_place = piece.routine->lifetimes.in_one_place[chunk]});
    };
    line.layout.each_part(line.cut.chunk(section.piece, chunk, chunks), add);
  }
  const auto start = lane.ranges.begin() + static_cast<std::ptrdiff_t>(first);
  std::stable_sort(start, lane.ranges.end(),
                   [](const ItemRange& a, const ItemRange& b) { return a.item < b.item; });
}

}  // namespace

void begin(Lane& lane, std::shared_ptr<Operation> operation, std::size_t index, Tag tag) {
  const Recipe& recipe = *operation->recipe;
  const Piece& piece = recipe.pieces[index];
  const Schedule& schedule = piece.routine->schedule;
  lane.routine = piece.routine.get();
  lane.source.reset();
  lane.piece = index;
  lane.tag = tag;
  lane.at = 0;
  lane.spent.clear();
  lane.arena_used = 0;
  lane.slots.assign(schedule.slots, {});
  lane.ranges.clear();
  lane.first_ranges.assign(1, 0);
  std::size_t total = 0;
  for (std::uint32_t chunk = 0; chunk < schedule.chunks; ++chunk) {
    add_ranges(lane, recipe, piece, chunk);
    for (std::size_t i = lane.first_ranges.back(); i < lane.ranges.size(); ++i) {
      lane.ranges[i].sums_at = total;
      total += lane.ranges[i].count;
    }
    lane.first_ranges.push_back(lane.ranges.size());
  }
  if (lane.sums.size() < total) {
    lane.sums.resize(total);
    lane.scratch.resize(total);
  }
  lane.operation = std::move(operation);
}

void begin_preparation(Lane& lane, std::shared_ptr<Operation> operation, std::size_t source) {
  lane.routine = operation->recipe->pieces[0].routine.get();  // all prepare alike
  lane.source = source;
  lane.taken = 0;
  lane.at = 0;
  lane.spent.clear();
  lane.operation = std::move(operation);
}

Status execute(Lane& lane, std::uint32_t rank, std::uint32_t ranks, Seal seal) noexcept {
  lane.fault = {};
  switch (lane.step().op) {
    case Op::measure:
    case Op::take:
    case Op::fit:
      prepare(lane);
      return Status::ok;
    case Op::encode:
      return encode(lane, rank, ranks, seal);
    case Op::keep:
      return keep(lane);
    case Op::decode:
    case Op::decode_add:
      return decode(lane, seal);
    case Op::echo:
      return echo(lane);
    default:
      compute(lane);
      return Status::ok;
  }
}

bool is_whole(const Lane& lane) noexcept {
  return !lane.source || lane.step().op == Op::fit || lane.elements() == 0;
}

}  // namespace gradwire::engine
