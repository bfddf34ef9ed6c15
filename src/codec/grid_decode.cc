// The bytes may come from anywhere: every length is checked before it is used.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/byte_cursor.h"
#include "base/bytes.h"
#include "codec/grid.h"
#include "codec/grid_format.h"
#include "codec/kernels/grid_blocks.h"

namespace gradwire::grid {
namespace {

using kernels::Quantization;

/// Turns the symbols of classes or scales into values.
class ValueReader {
 public:
  ValueReader(ByteReader& escapes, std::int8_t reference, int first) noexcept
      : escapes_(escapes),
        chained_(reference == kBlockBefore),
        before_(chained_ ? first : reference) {}

  /// False when the value is out of range or the byte of an escape is missing.
  bool read(int symbol, int low, int high, int& value) noexcept {
    value = before_ + symbol - kSameAsBefore;
    if (symbol == kEscape) {
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
  ValueReader reader(escapes, header.class_reference, kFirstClass);
  for (std::size_t b = 0; b < n; ++b) {
    classes[b] = kZeroClass;
    if (symbols[b] == kZeroBlock) continue;
    int block_class;
    if (!reader.read(symbols[b], kZeroClass + 1, kRawClass, block_class)) return false;
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
  ValueReader reader(escapes, header.scale_reference, kFirstScale);
  for (std::size_t b = 0, s = 0; b < n; ++b) {
    if (!is_coded(classes[b])) continue;
    const int symbol = symbols[s++];
    int scale;
    if (symbol == kZeroBlock || !reader.read(symbol, kMinScale, kMaxScale, scale)) return false;
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
  if (!reader.read(header) || header.shape >= kShapes || header.class_table >= kBlockTables ||
      header.scale_table >= kBlockTables || !reader.take(header.number_bytes, numbers) ||
      !reader.take(header.block_bytes, block_bytes) || !reader.take(kStatesBytes, states) ||
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
  if (!reader.read(mode)) return false;
  if (into == Into::assign) std::memset(out.data, 0, out.count * size_of(out.dtype));
  return true;
}

bool decode_chunk(ByteReader& reader, const Decoding& how, std::size_t first,
                  TensorView out) noexcept {
  if (reader.empty()) return false;
  switch (static_cast<Mode>(reader.rest().front())) {
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

}  // namespace

Status decode(const Settings& settings, std::span<const std::byte> payload, TensorView out,
              Into into) noexcept {
  ByteReader reader(payload);
  PayloadHeader header;
  if (!reader.read(header) || !plausible(header)) return Status::corrupt;
  Decoding how{Steps(header), settings.locality > 0, settings.rounding, {}, into};
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

}  // namespace gradwire::grid
