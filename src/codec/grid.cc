// `grid`: an entropy-coded grid. Numbers become integers, in steps that depend on the layer's and
// the block's rms; the integers go through an entropy coder whose table is picked per block.
//
// A payload is a small header and then one chunk after the other, 65 536 numbers each. A chunk is
// empty (all zeros), coded, or packed when coding would not pay. docs/format.md, "Grid", is the
// specification.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "codec/grid_classes.h"
#include "codec/kernels/grid_blocks.h"
#include "codec/registry.h"

namespace gradwire {
namespace {

using grid::kBlock;
using grid::kChunk;
using grid::kChunkBlocks;
using kernels::Quantization;
using kernels::Symbols;

// ---------------------------------------------------------------------------------------------
// Settings

enum class Target : std::uint8_t { step, nmse };

struct Settings {
  float amount;    // of the target: a step relative to the rms, or a normalized squared error
  float locality;  // 0: one step per layer; 1: steps follow the block's rms
  float rms;       // of the layer; 0: measure it
  Rounding rounding;
  Target target;
};
static_assert(offsetof(Settings, target) + 1 <= sizeof(Codec::Params));

constexpr float kMinStep = 0x1p-10f;
constexpr float kMaxStep = 16.0f;
constexpr float kMinNmse = 1e-7f;
constexpr float kMaxNmse = 1.0f;

Codec::Params parse(SpecReader& spec) {
  Settings settings{
      .amount = 0.5f, .locality = 0, .rms = 0, .rounding = {}, .target = Target::step};
  if (spec.has("step") && spec.has("nmse")) {
    throw Error(ErrorCode::invalid_spec, "codec grid takes step= or nmse=, not both");
  }
  settings.amount = spec.number("step", 0.5f, kMinStep, kMaxStep);
  if (spec.has("nmse")) settings.target = Target::nmse;
  const float nmse = spec.number("nmse", 0, kMinNmse, kMaxNmse);
  if (settings.target == Target::nmse) settings.amount = nmse;
  settings.locality = spec.number("locality", 0.5f, 0, 1) + 0.0f;
  settings.rounding = static_cast<Rounding>(spec.choice("rounding", 0, kRoundings));
  settings.rms = spec.number("rms", 0, std::numeric_limits<float>::denorm_min(), 3e38f);
  return pack(settings);
}

std::string format(const Codec::Params& params) {
  const auto settings = unpack<Settings>(params);
  std::string text = fmt::format(
      "grid:{}={},locality={},rounding={}", settings.target == Target::step ? "step" : "nmse",
      settings.amount, settings.locality, kRoundings[static_cast<int>(settings.rounding)]);
  return settings.rms == 0 ? text : text + fmt::format(",rms={}", settings.rms);
}

bool valid(const Codec::Params& params) noexcept {
  const auto settings = unpack<Settings>(params);
  const bool step = settings.target == Target::step;
  return settings.target <= Target::nmse && settings.rounding <= Rounding::dither &&
         settings.amount >= (step ? kMinStep : kMinNmse) &&
         settings.amount <= (step ? kMaxStep : kMaxNmse) && settings.locality >= 0 &&
         settings.locality <= 1 && settings.rms >= 0 && settings.rms <= 3e38f &&
         rest_is_zero<Settings>(params);
}

Traits traits(const Codec::Params& params) noexcept {
  const Rounding rounding = unpack<Settings>(params).rounding;
  return {.lossless = false,
          .unbiased = rounding != Rounding::nearest,
          .fixed_size = false,
          .keeps_zeros = rounding != Rounding::dither};
}

// ---------------------------------------------------------------------------------------------
// Steps. A block's scale is the octave of its mean square relative to the layer's; its step is
// base * ratio^scale.

constexpr int kMinScale = -60;
constexpr int kMaxScale = 40;

class Steps {
 public:
  Steps(float base, float ratio) noexcept {
    table_[-kMinScale] = base;
    double step = base;
    for (int scale = 1; scale <= kMaxScale; ++scale)
      table_[scale - kMinScale] = to_float(step *= ratio);
    step = base;
    const double inverse = 1.0 / ratio;
    for (int scale = -1; scale >= kMinScale; --scale)
      table_[scale - kMinScale] = to_float(step *= inverse);
  }

  float of(int scale) const noexcept { return table_[scale - kMinScale]; }

 private:
  static float to_float(double step) noexcept { return static_cast<float>(std::min(step, 3e38)); }
  float table_[kMaxScale - kMinScale + 1];
};

/// Steps outside of this range are not used: reciprocals and products would lose bits.
bool usable(float step) noexcept { return step > 0x1p-100f && step < 0x1p+100f; }

/// The octave of a mean square relative to the layer's.
int scale_of(double relative) noexcept {
  return std::clamp(std::ilogb(relative), kMinScale, kMaxScale);
}

/// One chunk's blocks: energies, and what follows from them.
struct Blocks {
  double energies[kChunkBlocks];
  float steps[kChunkBlocks];
  std::int8_t scales[kChunkBlocks];
};

std::size_t block_count(std::size_t count) noexcept { return divide_up(count, kBlock); }

std::size_t block_size(std::size_t block, std::size_t count) noexcept {
  return std::min(kBlock, count - block * kBlock);
}

/// Fills scales and steps from the energies. A block whose integers would not fit in 15 bits, or
/// that is not finite, gets the step NaN: it is sent as it is.
void choose_steps(const Steps& steps, double mean_square, bool local, std::size_t count,
                  Blocks& blocks) noexcept {
  for (std::size_t b = 0; b < block_count(count); ++b) {
    const double energy = blocks.energies[b];
    blocks.scales[b] = 0;
    if (energy == 0) {
      blocks.steps[b] = 0;
      continue;
    }
    const double relative = energy / (static_cast<double>(block_size(b, count)) * mean_square);
    if (local && std::isfinite(relative) && relative > 0) {
      blocks.scales[b] = static_cast<std::int8_t>(scale_of(relative));
    }
    const float step = steps.of(blocks.scales[b]);
    const bool fits = usable(step) && std::sqrt(energy) < 16000.0 * step;  // false for NaN
    blocks.steps[b] = fits ? step : NAN;
  }
}

// ---------------------------------------------------------------------------------------------
// Fitting

template <typename Function>
void for_each_chunk(ConstTensorView x, const Function& function) noexcept {
  for (std::size_t first = 0; first < x.count; first += kChunk) {
    function(first, x.slice(first, std::min(kChunk, x.count - first)));
  }
}

struct Energy {
  double sum = 0;
  std::size_t count = 0;  // of the numbers in finite blocks
  double mean_square() const noexcept { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

Energy measure(ConstTensorView x) noexcept {
  Energy total;
  for_each_chunk(x, [&](std::size_t, ConstTensorView chunk) {
    double energies[kChunkBlocks];
    kernels::block_energies(chunk, energies);
    double sum = 0;
    for (std::size_t b = 0; b < block_count(chunk.count); ++b) {
      if (std::isnan(energies[b])) continue;
      sum += energies[b];
      total.count += block_size(b, chunk.count);
    }
    total.sum += sum;
  });
  return total;
}

struct Scaling {
  float base;
  float ratio;
};

/// A block with the relative mean square 2^(scale + ½) gets the step step * rms^(1-locality) * its
/// rms^locality.
Scaling scaling(const Settings& settings) noexcept {
  const double locality = settings.locality;
  const double base = static_cast<double>(settings.amount) * settings.rms * std::exp2(locality / 4);
  return {static_cast<float>(std::min(base, 3e38)), static_cast<float>(std::exp2(locality / 2))};
}

/// The normalized squared error that these settings, with a step, are expected to make.
double expected_nmse(const Settings& settings, ConstTensorView x, double energy) noexcept {
  const Scaling scale = scaling(settings);
  const Steps steps(scale.base, scale.ratio);
  const double mean_square = static_cast<double>(settings.rms) * settings.rms;
  double error = 0;
  for_each_chunk(x, [&](std::size_t first, ConstTensorView chunk) {
    Blocks blocks;
    double errors[kChunkBlocks];
    kernels::block_energies(chunk, blocks.energies);
    choose_steps(steps, mean_square, settings.locality > 0, chunk.count, blocks);
    const Quantization how{blocks.steps, settings.rounding, 0, first};
    kernels::expected_errors(chunk, how, errors);
    for (std::size_t b = 0; b < block_count(chunk.count); ++b) error += errors[b];
  });
  return error / energy;
}

/// The step that makes the requested error: Newton's method on logarithms, with the slope between
/// the last two guesses. Ends when the error is right to 1 %.
float step_for_nmse(Settings settings, ConstTensorView x, double energy) noexcept {
  const double target = settings.amount;
  double step = std::sqrt(12 * target);
  double previous_step = 0;
  double previous_nmse = 0;
  for (int round = 0; round < 16; ++round) {
    settings.amount = static_cast<float>(step);
    const double nmse = expected_nmse(settings, x, energy);
    if (!(nmse > 0) || std::abs(nmse / target - 1) < 0.01) break;
    double slope = 2;
    if (previous_nmse > 0 && step != previous_step) {
      slope = std::clamp(std::log(nmse / previous_nmse) / std::log(step / previous_step), 0.3, 3.0);
    }
    previous_step = step;
    previous_nmse = nmse;
    const double change = std::clamp(std::pow(target / nmse, 1 / slope), 0.1, 10.0);
    step = std::clamp<double>(step * change, kMinStep, kMaxStep);
  }
  return static_cast<float>(std::clamp<double>(step, kMinStep, kMaxStep));
}

Settings fitted(Settings settings, ConstTensorView layer) noexcept {
  if (settings.rms > 0 && settings.target == Target::step) return settings;
  const Energy energy = measure(layer);
  if (settings.rms == 0) {
    const double rms = std::sqrt(energy.mean_square());
    settings.rms = static_cast<float>(std::clamp(rms, 1e-45, 3e38));
  }
  if (settings.target == Target::nmse) {
    settings.target = Target::step;
    settings.amount = energy.sum > 0 ? step_for_nmse(
                                           [&] {
                                             Settings open = settings;
                                             open.target = Target::nmse;
                                             return open;
                                           }(),
                                           layer, energy.sum)
                                     : 0.5f;
  }
  return settings;
}

Codec::Params fit(const Codec::Params& params, ConstTensorView layer) noexcept {
  return pack(fitted(unpack<Settings>(params), layer));
}

// ---------------------------------------------------------------------------------------------
// The format

enum class Mode : std::uint8_t { zeros = 0, coded = 1, packed = 2 };

struct PayloadHeader {
  float base;
  float ratio;
};

struct DitherHeader {  // follows only with dithered numbers
  std::uint64_t folded_key;
  std::uint64_t first_element;
};

struct CodedHeader {
  Mode mode;
  std::uint8_t shape;
  std::uint8_t class_table;
  std::uint8_t scale_table;
  std::int8_t class_reference;  // what classes are differences to: a class, or kBlockBefore
  std::int8_t scale_reference;
  std::uint16_t block_bytes;
  std::uint32_t number_bytes;
  std::uint32_t word_count;
};
static_assert(sizeof(CodedHeader) == 16);
constexpr std::int8_t kBlockBefore = 127;

// A coded chunk: header, number bytes, block bytes, states, words. A packed one: mode, u32 length,
// bytes.

constexpr std::size_t kStatesBytes = sizeof(RansStates);
constexpr std::size_t kPackedHeaderBytes = 5;

constexpr std::size_t groups_of(std::size_t symbols) {
  return divide_up<std::size_t>(symbols, kRansStates);
}

/// What a chunk may take besides 512 bytes per block: headers, states, the symbols of classes and
/// scales at their worst, and room for vector stores.
constexpr std::size_t kChunkOverhead =
    sizeof(CodedHeader) + kStatesBytes + 2 * groups_of(kChunkBlocks) * 2 * kRansMaxGroupWords + 128;

std::size_t max_bytes(const Codec::Params&, std::size_t count) noexcept {
  const std::size_t chunks = divide_up(count, kChunk);
  return sizeof(PayloadHeader) + sizeof(DitherHeader) +
         block_count(count) * (kernels::kMaxNumberBytes + 4) + chunks * kChunkOverhead;
}

// ---------------------------------------------------------------------------------------------
// Encoding a chunk

std::uint64_t cost_of(const std::uint32_t* histogram, const RansTable& table) noexcept {
  std::uint64_t cost = 0;
  for (int s = 0; s < kRansSymbols; ++s) cost += std::uint64_t{histogram[s]} * table.cost[s];
  return cost;
}

/// The cheapest of `tables` for a histogram, and its cost.
struct Choice {
  std::uint8_t table = 0;
  std::uint64_t cost = ~std::uint64_t{0};
};

constexpr std::size_t kFirstBlockTable = grid::kShapes * grid::kLevels;

const RansTable* level_tables(int shape) noexcept {
  return &grid::tables()[static_cast<std::size_t>(shape * grid::kLevels)];
}

const RansTable& block_table(std::uint8_t index) noexcept {
  return grid::tables()[kFirstBlockTable + index];
}

Choice cheapest_block_table(const std::uint32_t* histogram) noexcept {
  Choice best;
  for (std::uint8_t t = 0; t < grid::kBlockTables; ++t) {
    const std::uint64_t cost = cost_of(histogram, block_table(t));
    if (cost < best.cost) best = {t, cost};
  }
  return best;
}

/// One value per block, classes or scales.
struct BlockValues {
  std::int8_t values[kChunkBlocks];
  std::size_t count = 0;
};
constexpr int kNoValue = -128;  // a block of zeros, among classes

/// Values as symbols: differences to a reference or to the value before, and what escapes.
struct BlockPlane {
  std::uint8_t symbols[kChunkBlocks + kRansStates];
  std::uint8_t escaped[kChunkBlocks];
  std::size_t count = 0;
  std::size_t escapes = 0;
  std::int8_t reference;
  Choice table;

  BlockPlane(const BlockValues& from, int first, std::int8_t wanted) noexcept : reference(wanted) {
    std::uint32_t histogram[kRansSymbols] = {};
    int before = wanted == kBlockBefore ? first : wanted;
    for (std::size_t i = 0; i < from.count; ++i) {
      const int symbol = put(from.values[i], before);
      ++histogram[symbol];
      if (wanted == kBlockBefore && from.values[i] != kNoValue) before = from.values[i];
    }
    table = cheapest_block_table(histogram);
    table.cost += escapes * 8 * 256;
    std::memset(symbols + count, grid::kSameAsBefore, groups() * kRansStates - count);
  }

  std::size_t groups() const noexcept { return groups_of(count); }

 private:
  int put(int value, int before) noexcept {
    const int difference = value - before;
    int symbol = grid::kSameAsBefore + difference;
    if (value == kNoValue) {
      symbol = grid::kZeroBlock;
    } else if (difference < grid::kMinDifference || difference > grid::kMaxDifference) {
      symbol = grid::kEscape;
      escaped[escapes++] = static_cast<std::uint8_t>(value);
    }
    return symbols[count++] = static_cast<std::uint8_t>(symbol);
  }
};

std::int8_t most_frequent(const BlockValues& from) noexcept {
  std::uint16_t counts[256] = {};
  int best = 0;
  for (std::size_t i = 0; i < from.count; ++i) {
    const int value = from.values[i];
    if (value == kNoValue) continue;
    ++counts[value + 128];
    if (counts[value + 128] > counts[best + 128]) best = value;
  }
  return static_cast<std::int8_t>(best);
}

/// Neighbours alike: differences to the block before; all alike: differences to the most frequent
/// value.
BlockPlane describe(const BlockValues& values, int first) noexcept {
  const BlockPlane chained(values, first, kBlockBefore);
  const BlockPlane fixed(values, first, most_frequent(values));
  return fixed.table.cost < chained.table.cost ? fixed : chained;
}

bool is_coded(int block_class) noexcept {
  return block_class != grid::kZeroClass && block_class != grid::kRawClass;
}

/// The shape whose tables cost least, judged by some of the blocks.
std::uint8_t best_shape(const Symbols& symbols, std::size_t count) noexcept {
  std::uint32_t histograms[grid::kLevels][kRansSymbols] = {};
  const std::size_t blocks = block_count(count);
  const std::size_t stride = blocks >= 256 ? 8 : 1;
  const std::uint8_t* at = symbols.symbols;
  for (std::size_t b = 0, coded = 0; b < blocks; ++b) {
    if (!is_coded(symbols.classes[b])) continue;
    const std::size_t n = block_size(b, count);
    if (coded++ % stride == 0) {
      std::uint32_t* histogram = histograms[grid::level_of(symbols.classes[b])];
      for (std::size_t i = 0; i < n; ++i) ++histogram[at[i]];
    }
    at += groups_of(n) * kRansStates;
  }
  std::uint8_t best = 0;
  std::uint64_t lowest = ~std::uint64_t{0};
  for (std::uint8_t shape = 0; shape < grid::kShapes; ++shape) {
    std::uint64_t cost = 0;
    for (int level = 0; level < grid::kLevels; ++level) {
      cost += cost_of(histograms[level], level_tables(shape)[level]);
    }
    if (cost < lowest) {
      lowest = cost;
      best = shape;
    }
  }
  return best;
}

BlockValues classes_of(const Symbols& symbols, std::size_t count) noexcept {
  BlockValues classes;
  for (std::size_t b = 0; b < block_count(count); ++b) {
    const int block_class = symbols.classes[b];
    classes.values[classes.count++] =
        static_cast<std::int8_t>(block_class == grid::kZeroClass ? kNoValue : block_class);
  }
  return classes;
}

/// Of the blocks that have one.
BlockValues scales_of(const Symbols& symbols, const Blocks& blocks, std::size_t count) noexcept {
  BlockValues scales;
  for (std::size_t b = 0; b < block_count(count); ++b) {
    if (is_coded(symbols.classes[b])) scales.values[scales.count++] = blocks.scales[b];
  }
  return scales;
}

std::byte* append(std::byte* to, const std::uint8_t* bytes, std::size_t count) noexcept {
  std::memcpy(to, bytes, count);
  return to + count;
}

/// Appends the words of classes, scales and integers at `out`, states first. Returns the end.
std::byte* code_symbols(CodedHeader& header, const Symbols& symbols, const BlockPlane& classes,
                        const BlockPlane& scales, std::size_t count, std::byte* out) noexcept {
  RansRun runs[kChunkBlocks];
  std::size_t run_count = 0;
  for (std::size_t b = 0; b < block_count(count); ++b) {
    const int block_class = symbols.classes[b];
    if (!is_coded(block_class)) continue;
    runs[run_count++] = {level_tables(header.shape) + grid::level_of(block_class),
                         static_cast<std::uint32_t>(groups_of(block_size(b, count)))};
  }
  const RansRun class_run{&block_table(header.class_table),
                          static_cast<std::uint32_t>(classes.groups())};
  const RansRun scale_run{&block_table(header.scale_table),
                          static_cast<std::uint32_t>(scales.groups())};

  // Words are written backwards from where they could reach at most, then moved to where they
  // belong.
  const std::size_t groups = symbols.groups + classes.groups() + scales.groups();
  std::byte* const words = out + kStatesBytes;
  const std::size_t room = groups * 2 * kRansMaxGroupWords + 32;
  const auto misaligned = reinterpret_cast<std::uintptr_t>(words + room) % alignof(std::uint16_t);
  auto* const end = reinterpret_cast<std::uint16_t*>(words + room - misaligned);
  RansStates states;
  states.fill(kRansLow);
  std::uint16_t* at = rans_encode({runs, run_count}, symbols.symbols, states, end);
  at = rans_encode({&scale_run, 1}, scales.symbols, states, at);
  at = rans_encode({&class_run, 1}, classes.symbols, states, at);
  header.word_count = static_cast<std::uint32_t>(end - at);
  store(out, states);
  std::memmove(words, at, 2 * header.word_count);
  return words + 2 * header.word_count;
}

std::byte* encode_coded(ConstTensorView chunk, const Quantization& how, const Blocks& blocks,
                        bool local, std::byte* out) noexcept {
  Symbols symbols;
  std::byte* const numbers = out + sizeof(CodedHeader);
  std::byte* const numbers_end = kernels::to_symbols(chunk, how, symbols, numbers);
  const BlockPlane classes = describe(classes_of(symbols, chunk.count), grid::kFirstClass);
  const BlockPlane scales =
      describe(local ? scales_of(symbols, blocks, chunk.count) : BlockValues{}, grid::kFirstScale);
  CodedHeader header{.mode = Mode::coded,
                     .shape = best_shape(symbols, chunk.count),
                     .class_table = classes.table.table,
                     .scale_table = scales.table.table,
                     .class_reference = classes.reference,
                     .scale_reference = scales.reference,
                     .block_bytes = static_cast<std::uint16_t>(classes.escapes + scales.escapes),
                     .number_bytes = static_cast<std::uint32_t>(numbers_end - numbers),
                     .word_count = 0};
  std::byte* at = append(numbers_end, classes.escaped, classes.escapes);
  at = append(at, scales.escaped, scales.escapes);
  at = code_symbols(header, symbols, classes, scales, chunk.count, at);
  store(out, header);
  return at;
}

/// Scales go uncoded here, one byte per block.
std::byte* encode_packed(ConstTensorView chunk, const Quantization& how, const Blocks& blocks,
                         bool local, std::byte* out) noexcept {
  std::byte* at = out + kPackedHeaderBytes;
  if (local) {
    std::memcpy(at, blocks.scales, block_count(chunk.count));
    at += block_count(chunk.count);
  }
  at = kernels::to_packed(chunk, how, at);
  store(out, Mode::packed);
  store(out + 1, static_cast<std::uint32_t>(at - out - kPackedHeaderBytes));
  return at;
}

/// Up to here packing may be shorter: the states alone would cost a bit or more per number.
constexpr std::size_t kMayPack = 2048;

std::byte* encode_chunk(ConstTensorView chunk, const Quantization& how, const Blocks& blocks,
                        bool local, std::byte* out) noexcept {
  const float* const steps_end = blocks.steps + block_count(chunk.count);
  if (std::all_of(blocks.steps, steps_end, [](float step) { return step == 0; })) {
    store(out, Mode::zeros);
    return out + 1;
  }
  std::byte* const coded_end = encode_coded(chunk, how, blocks, local, out);
  if (chunk.count > kMayPack) return coded_end;
  std::byte packed[kMayPack / kBlock * (kernels::kMaxNumberBytes + 2) + kPackedHeaderBytes + 64];
  const std::byte* const packed_end = encode_packed(chunk, how, blocks, local, packed);
  if (packed_end - packed >= coded_end - out) return coded_end;
  std::memcpy(out, packed, static_cast<std::size_t>(packed_end - packed));
  return out + (packed_end - packed);
}

std::size_t encode(const Codec::Params& params, ConstTensorView x, const EncodeOptions& options,
                   std::byte* out) noexcept {
  const Settings settings = fitted(unpack<Settings>(params), x);
  const Scaling scale = scaling(settings);
  const Steps steps(scale.base, scale.ratio);
  const double mean_square = static_cast<double>(settings.rms) * settings.rms;
  const std::uint64_t folded_key = fold(options.random);
  std::byte* at = out;
  store(at, PayloadHeader{scale.base, scale.ratio});
  at += sizeof(PayloadHeader);
  if (settings.rounding == Rounding::dither) {
    store(at, DitherHeader{folded_key, options.first_element});
    at += sizeof(DitherHeader);
  }
  for_each_chunk(x, [&](std::size_t first, ConstTensorView chunk) {
    Blocks blocks;
    const bool local = settings.locality > 0;
    kernels::block_energies(chunk, blocks.energies);
    choose_steps(steps, mean_square, local, chunk.count, blocks);
    const Quantization how{blocks.steps, settings.rounding, folded_key,
                           options.first_element + first};
    at = encode_chunk(chunk, how, blocks, local, at);
  });
  return static_cast<std::size_t>(at - out);
}

// ---------------------------------------------------------------------------------------------
// Decoding. The bytes may come from anywhere.

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <typename T>
  bool read(T& value) noexcept {
    if (rest_.size() < sizeof(T)) return false;
    value = load<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool take(std::size_t bytes, std::span<const std::byte>& part) noexcept {
    if (rest_.size() < bytes) return false;
    part = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  const std::byte* position() const noexcept { return rest_.data(); }
  bool empty() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

/// Turns the symbols of classes or scales into values.
class ValueReader {
 public:
  ValueReader(ByteReader& escapes, std::int8_t reference, int first) noexcept
      : escapes_(escapes),
        chained_(reference == kBlockBefore),
        before_(chained_ ? first : reference) {}

  /// False when the value is out of range or the byte of an escape is missing.
  bool read(int symbol, int low, int high, int& value) noexcept {
    value = before_ + symbol - grid::kSameAsBefore;
    if (symbol == grid::kEscape) {
      std::int8_t escaped;
      if (!escapes_.read(escaped)) return false;
      value = escaped;
    }
    if (chained_) before_ = value;
    return value >= low && value <= high;
  }

 private:
  ByteReader& escapes_;
  bool chained_;
  int before_;
};

bool read_classes(RansReader& rans, const CodedHeader& header, ByteReader& escapes,
                  std::size_t count, std::uint8_t* classes) noexcept {
  const std::size_t n = block_count(count);
  std::uint8_t symbols[kChunkBlocks + kRansStates];
  if (!rans_decode(rans, block_table(header.class_table), groups_of(n), symbols)) return false;
  ValueReader reader(escapes, header.class_reference, grid::kFirstClass);
  for (std::size_t b = 0; b < n; ++b) {
    classes[b] = grid::kZeroClass;
    if (symbols[b] == grid::kZeroBlock) continue;
    int block_class;
    if (!reader.read(symbols[b], grid::kZeroClass + 1, grid::kRawClass, block_class)) return false;
    classes[b] = static_cast<std::uint8_t>(block_class);
  }
  return true;
}

bool read_steps(RansReader& rans, const CodedHeader& header, ByteReader& escapes,
                const Steps& steps, const std::uint8_t* classes, std::size_t count,
                float* block_steps) noexcept {
  const std::size_t n = block_count(count);
  const auto coded = static_cast<std::size_t>(std::count_if(classes, classes + n, is_coded));
  std::uint8_t symbols[kChunkBlocks + kRansStates];
  if (!rans_decode(rans, block_table(header.scale_table), groups_of(coded), symbols)) return false;
  ValueReader reader(escapes, header.scale_reference, grid::kFirstScale);
  for (std::size_t b = 0, s = 0; b < n; ++b) {
    if (!is_coded(classes[b])) continue;
    const int symbol = symbols[s++];
    int scale;
    if (symbol == grid::kZeroBlock || !reader.read(symbol, kMinScale, kMaxScale, scale))
      return false;
    block_steps[b] = steps.of(scale);
  }
  return true;
}

/// What all chunks of a payload share.
struct Decoding {
  Steps steps;
  bool local;
  Rounding rounding;
  DitherHeader dither;
  Into into;

  Quantization of_chunk(const float* block_steps, std::size_t first) const noexcept {
    return {block_steps, rounding, dither.folded_key, dither.first_element + first};
  }
};

bool decode_coded(ByteReader& reader, const Decoding& how, std::size_t first,
                  TensorView out) noexcept {
  CodedHeader header;
  std::span<const std::byte> numbers, block_bytes, states, words;
  if (!reader.read(header) || header.shape >= grid::kShapes ||
      header.class_table >= grid::kBlockTables || header.scale_table >= grid::kBlockTables ||
      !reader.take(header.number_bytes, numbers) || !reader.take(header.block_bytes, block_bytes) ||
      !reader.take(kStatesBytes, states) ||
      !reader.take(std::size_t{2} * header.word_count, words)) {
    return false;
  }
  RansReader rans{load<RansStates>(states.data()), words.data(), words.data() + words.size()};
  for (const std::uint32_t state : rans.states) {
    if (state < kRansLow || state >= 1u << 31) return false;
  }
  ByteReader escapes(block_bytes);
  std::uint8_t classes[kChunkBlocks];
  float block_steps[kChunkBlocks];
  std::fill(block_steps, block_steps + block_count(out.count), how.steps.of(0));
  if (!read_classes(rans, header, escapes, out.count, classes)) return false;
  if (how.local && !read_steps(rans, header, escapes, how.steps, classes, out.count, block_steps)) {
    return false;
  }
  return escapes.empty() &&
         kernels::from_symbols(rans, classes, how.of_chunk(block_steps, first),
                               level_tables(header.shape), numbers, out, how.into) &&
         rans_finished(rans);
}

bool decode_packed(ByteReader& reader, const Decoding& how, std::size_t first,
                   TensorView out) noexcept {
  Mode mode;
  std::uint32_t length;
  std::span<const std::byte> bytes;
  if (!reader.read(mode) || !reader.read(length) || !reader.take(length, bytes)) return false;
  const std::size_t n = block_count(out.count);
  float block_steps[kChunkBlocks];
  std::fill(block_steps, block_steps + n, how.steps.of(0));
  if (how.local) {
    if (bytes.size() < n) return false;
    for (std::size_t b = 0; b < n; ++b) {
      const int scale = static_cast<std::int8_t>(bytes[b]);
      if (scale < kMinScale || scale > kMaxScale) return false;
      block_steps[b] = how.steps.of(scale);
    }
    bytes = bytes.subspan(n);
  }
  return kernels::from_packed(bytes, how.of_chunk(block_steps, first), out, how.into);
}

bool decode_zeros(ByteReader& reader, TensorView out, Into into) noexcept {
  Mode mode;
  reader.read(mode);
  if (into == Into::assign) std::memset(out.data, 0, out.count * size_of(out.dtype));
  return true;
}

bool decode_chunk(ByteReader& reader, const Decoding& how, std::size_t first,
                  TensorView out) noexcept {
  if (reader.empty()) return false;
  switch (static_cast<Mode>(*reader.position())) {
    case Mode::zeros:
      return decode_zeros(reader, out, how.into);
    case Mode::coded:
      return decode_coded(reader, how, first, out);
    case Mode::packed:
      return decode_packed(reader, how, first, out);
  }
  return false;
}

bool plausible(const PayloadHeader& header) noexcept {
  return std::isfinite(header.base) && header.base >= 0 && header.ratio >= 1 && header.ratio < 1.5f;
}

Status decode(const Codec::Params& params, std::span<const std::byte> payload, Dtype,
              TensorView out, Into into) noexcept {
  const auto settings = unpack<Settings>(params);
  ByteReader reader(payload);
  PayloadHeader header;
  if (!reader.read(header) || !plausible(header)) return Status::corrupt;
  Decoding how{
      Steps(header.base, header.ratio), settings.locality > 0, settings.rounding, {}, into};
  if (how.rounding == Rounding::dither &&
      (!reader.read(how.dither) || how.dither.first_element % kSliceAlignment != 0)) {
    return Status::corrupt;
  }
  for (std::size_t first = 0; first < out.count; first += kChunk) {
    const TensorView chunk = out.slice(first, std::min(kChunk, out.count - first));
    if (!decode_chunk(reader, how, first, chunk)) return Status::corrupt;
  }
  return reader.empty() ? Status::ok : Status::corrupt;
}

}  // namespace

const CodecKind kGrid = {.id = 6,
                         .name = "grid",
                         .parse = parse,
                         .format = format,
                         .valid = valid,
                         .traits = traits,
                         .fit = fit,
                         .max_bytes = max_bytes,
                         .encode = encode,
                         .decode = decode};

}  // namespace gradwire
