#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "codec/grid.h"
#include "codec/grid_fit.h"
#include "codec/grid_format.h"
#include "codec/kernels/grid_blocks.h"

namespace gradwire::grid {
namespace {

using kernels::Quantization;
using kernels::Symbols;

/// What a chunk may take besides 512 bytes per block: headers, states, the symbols of classes and
/// scales at their worst, and room for vector stores.
constexpr std::size_t kChunkOverhead =
    sizeof(CodedHeader) + kStatesBytes + 2 * groups_of(kChunkBlocks) * 2 * kRansMaxGroupWords + 128;

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

Choice cheapest_block_table(const std::uint32_t* histogram) noexcept {
  Choice best;
  for (std::uint8_t t = 0; t < kBlockTables; ++t) {
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
    std::memset(symbols + count, kSameAsBefore, groups() * kRansStates - count);
  }

  std::size_t groups() const noexcept { return groups_of(count); }

 private:
  int put(int value, int before) noexcept {
    const int difference = value - before;
    int symbol = kSameAsBefore + difference;
    if (value == kNoValue) {
      symbol = kZeroBlock;
    } else if (difference < kMinDifference || difference > kMaxDifference) {
      symbol = kEscape;
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

/// The shape whose tables cost least, judged by some of the blocks.
std::uint8_t best_shape(const Symbols& symbols, std::size_t count) noexcept {
  std::uint32_t histograms[kLevels][kRansSymbols] = {};
  const std::size_t blocks = block_count(count);
  const std::size_t stride = blocks >= 256 ? 8 : 1;
  const std::uint8_t* at = symbols.symbols;
  for (std::size_t b = 0, coded = 0; b < blocks; ++b) {
    if (!is_coded(symbols.classes[b])) continue;
    const std::size_t n = block_size(b, count);
    if (coded++ % stride == 0) {
      std::uint32_t* histogram = histograms[level_of(symbols.classes[b])];
      for (std::size_t i = 0; i < n; ++i) ++histogram[at[i]];
    }
    at += groups_of(n) * kRansStates;
  }
  std::uint8_t best = 0;
  std::uint64_t lowest = ~std::uint64_t{0};
  for (std::uint8_t shape = 0; shape < kShapes; ++shape) {
    std::uint64_t cost = 0;
    for (int level = 0; level < kLevels; ++level) {
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
        static_cast<std::int8_t>(block_class == kZeroClass ? kNoValue : block_class);
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
    runs[run_count++] = {level_tables(header.shape) + level_of(block_class),
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
  const BlockPlane classes = describe(classes_of(symbols, chunk.count), kFirstClass);
  const BlockPlane scales =
      describe(local ? scales_of(symbols, blocks, chunk.count) : BlockValues{}, kFirstScale);
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

}  // namespace

std::size_t max_bytes(std::size_t count) noexcept {
  const std::size_t chunks = divide_up(count, kChunk);
  return sizeof(PayloadHeader) + sizeof(DitherHeader) +
         block_count(count) * (kernels::kMaxNumberBytes + 4) + chunks * kChunkOverhead;
}

std::size_t encode(const Settings& wanted, ConstTensorView x, const EncodeOptions& options,
                   std::span<const double> notes, std::byte* out) noexcept {
  const Settings settings = fitted(wanted, std::span(&x, 1));
  const PayloadHeader header = scaling(settings);
  const Steps steps(header);
  const std::uint64_t folded_key = fold(options.random);
  std::byte* at = out;
  store(at, header);
  at += sizeof(PayloadHeader);
  if (settings.rounding == Rounding::dither) {
    store(at, DitherHeader{folded_key, options.first_element});
    at += sizeof(DitherHeader);
  }
  for_each_chunk(x, [&](std::size_t first, ConstTensorView chunk) {
    Blocks blocks;
    const bool local = settings.locality > 0;
    if (notes.empty()) {
      kernels::block_energies(chunk, blocks.energies);
    } else {
      const std::size_t noted = (options.first_element + first) / kBlock;
      std::copy_n(&notes[noted], block_count(chunk.count), blocks.energies);
    }
    choose_steps(steps, settings, chunk.count, blocks);
    const Quantization how{blocks.steps, settings.rounding, folded_key,
                           options.first_element + first};
    at = encode_chunk(chunk, how, blocks, local, at);
  });
  return static_cast<std::size_t>(at - out);
}

}  // namespace gradwire::grid
