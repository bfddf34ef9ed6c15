#include "codec/sparse.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "base/byte_cursor.h"
#include "base/bytes.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr std::size_t kMembers = SparseWriter::kMembers;

/// A gap is `gap >> width` zeros, a one, and its low `width` bits, the lowest bit of the first byte
/// first. Of width 0 these are the bits of a bitmap.
constexpr unsigned kMaxWidth = 56;  // what fits a word with seven bits before it
constexpr unsigned kNoGaps = 255;   // all members follow the last element directly: no bits at all
constexpr std::size_t kBitSlack = 8;  // bytes behind its bits that a writer clears

// ---------------------------------------------------------------------------------------------
// Gaps

std::uint64_t bits_of(std::span<const std::uint64_t> gaps, unsigned width) noexcept {
  std::uint64_t bits = gaps.size() * (width + 1);
  for (const std::uint64_t gap : gaps) bits += gap >> width;
  return bits;
}

/// The width that takes the fewest bits: near log2 of the mean gap times ln 2, where a geometric
/// distribution wants it; or 0, so that no gaps take more bits than a bitmap.
unsigned best_width(std::span<const std::uint64_t> gaps, std::uint64_t& bits) noexcept {
  std::uint64_t sum = 0;
  for (const std::uint64_t gap : gaps) sum += gap;
  bits = sum + gaps.size();
  if (sum == 0) return kNoGaps;
  const auto middle = static_cast<unsigned>(std::bit_width(sum * 11 / 16 / gaps.size()));
  unsigned best = 0;
  for (unsigned width = middle > 1 ? middle - 1 : 1; width <= std::min(middle + 1, kMaxWidth);
       ++width) {
    const std::uint64_t needed = bits_of(gaps, width);
    if (needed >= bits) continue;
    bits = needed;
    best = width;
  }
  return best;
}

std::byte* write_gaps(std::span<const std::uint64_t> gaps, std::byte* to) noexcept {
  std::uint64_t bits = 0;
  const unsigned width = best_width(gaps, bits);
  *to++ = static_cast<std::byte>(width);
  if (width == kNoGaps) return to;
  const std::size_t bytes = divide_up<std::uint64_t>(bits, 8);
  std::fill_n(to, bytes + kBitSlack, std::byte{0});
  std::uint64_t bit = 0;
  for (const std::uint64_t gap : gaps) {
    bit += gap >> width;
    const std::uint64_t low = gap & ((std::uint64_t{1} << width) - 1);
    std::byte* const word = to + bit / 8;
    store(word, load<std::uint64_t>(word) | (low << 1 | 1) << (bit % 8));
    bit += width + 1;
  }
  return to + bytes;
}

/// Bits from bytes that may end anywhere; zeros behind them.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  /// The next 57 bits at least.
  std::uint64_t peek() const noexcept {
    const std::size_t at = bit_ / 8;
    std::uint64_t word = 0;
    if (at + 8 <= bytes_.size()) {
      word = load<std::uint64_t>(bytes_.data() + at);
    } else if (at < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + at, bytes_.size() - at);
    }
    return word >> (bit_ % 8);
  }
  void skip(std::uint64_t bits) noexcept { bit_ += bits; }
  bool ended() const noexcept { return bit_ > 8 * bytes_.size(); }
  /// The bytes behind the last one that was begun.
  std::span<const std::byte> rest() const noexcept {
    return bytes_.subspan(divide_up<std::uint64_t>(bit_, 8));
  }

  /// The zeros before the next one, which is taken, too. Does not end before the bytes when there
  /// is none.
  std::uint64_t zeros() noexcept {
    std::uint64_t zeros = 0;
    while (true) {
      const std::uint64_t word = peek();
      const unsigned most = 57;
      const auto here = std::min<unsigned>(static_cast<unsigned>(std::countr_zero(word)), most);
      zeros += here;
      skip(here);
      if (here < most) break;
      if (ended()) return zeros;
    }
    skip(1);
    return zeros;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t bit_ = 0;
};

/// The places of a group's members, all below `count`; false when the bytes do not say so. As
/// places ascend, there cannot be more of them than elements.
bool read_gaps(ByteReader& bytes, std::uint64_t count, std::uint64_t& next,
               std::span<std::uint64_t> places) noexcept {
  std::uint8_t width;
  if (!bytes.read(width)) return false;
  if (width == kNoGaps) {
    if (places.size() > count - next) return false;
    for (std::uint64_t& place : places) place = next++;
    return true;
  }
  if (width > kMaxWidth) return false;
  BitReader bits(bytes.rest());
  for (std::uint64_t& place : places) {
    const std::uint64_t high = bits.zeros();
    if (high > (count - next) >> width) return false;
    const std::uint64_t low = bits.peek() & ((std::uint64_t{1} << width) - 1);
    bits.skip(width);
    const std::uint64_t gap = high << width | low;
    if (bits.ended() || gap >= count - next) return false;
    place = next + gap;
    next = place + 1;
  }
  bytes = ByteReader(bits.rest());
  return true;
}

// ---------------------------------------------------------------------------------------------
// Numbers

float largest_finite(std::span<const float> numbers) noexcept {
  float largest = 0;
  for (const float x : numbers) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

bool all_finite(std::span<const float> numbers) noexcept {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

std::byte* write_floats(std::span<const float> numbers, std::byte* to) noexcept {
  std::memcpy(to, numbers.data(), numbers.size_bytes());
  return to + numbers.size_bytes();
}

/// In units of the power of two below the largest: f16 would overflow, or lose what is small.
std::byte* write_halves(std::span<const float> numbers, std::byte* to) noexcept {
  const float largest = largest_finite(numbers);
  const int exponent = largest == 0 ? 0 : std::ilogb(largest);
  store(to, std::ldexp(1.0f, exponent));
  float scaled[kMembers];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    scaled[i] = static_cast<float>(std::ldexp(static_cast<double>(numbers[i]), -exponent));
    // What would round to 2 may be too large when it comes back.
    if (std::isfinite(scaled[i])) scaled[i] = std::clamp(scaled[i], -0x1.ffcp0f, 0x1.ffcp0f);
  }
  alignas(2) std::byte halves[2 * kMembers];
  kernels::cast({scaled, numbers.size(), Dtype::f32}, {halves, numbers.size(), Dtype::f16},
                Into::assign);
  std::memcpy(to + sizeof(float), halves, 2 * numbers.size());
  return to + sizeof(float) + 2 * numbers.size();
}

constexpr int kMostUnits = 127;

/// As finite as the largest: 127 units must not overflow, nor one be zero.
float unit_of(float largest) noexcept {
  const float unit = std::max(largest / kMostUnits, FLT_TRUE_MIN);
  return std::isfinite(unit * kMostUnits) ? unit : std::nextafter(unit, 0.0f);
}

std::byte* write_bytes(std::span<const float> numbers, std::byte* to) noexcept {
  if (!all_finite(numbers)) {
    store(to, NAN);
    return write_floats(numbers, to + sizeof(float));
  }
  const float unit = unit_of(largest_finite(numbers));
  store(to, unit);
  to += sizeof(float);
  for (const float x : numbers) {
    const double units = std::nearbyint(static_cast<double>(x) / unit);
    const double limit = kMostUnits;
    *to++ = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(units, -limit, limit)));
  }
  return to;
}

bool read_halves(ByteReader& bytes, std::span<float> numbers) noexcept {
  float scale;
  std::uint16_t halves[kMembers];
  if (!bytes.read(scale) || !bytes.read_all(std::span(halves, numbers.size()))) return false;
  kernels::cast({halves, numbers.size(), Dtype::f16}, {numbers.data(), numbers.size(), Dtype::f32},
                Into::assign);
  for (float& x : numbers) x *= scale;
  return true;
}

bool read_bytes(ByteReader& bytes, std::span<float> numbers) noexcept {
  float unit;
  if (!bytes.read(unit)) return false;
  if (std::isnan(unit)) return bytes.read_all(numbers);
  std::span<const std::byte> from;
  if (!bytes.take(numbers.size(), from)) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(static_cast<std::int8_t>(from[i])) * unit;
  }
  return true;
}

bool read_numbers(Values values, ByteReader& bytes, std::span<float> numbers) noexcept {
  switch (values) {
    case Values::fp32:
      return bytes.read_all(numbers);
    case Values::fp16:
      return read_halves(bytes, numbers);
    case Values::int8:
      return read_bytes(bytes, numbers);
    case Values::mean:
      break;
  }
  return true;
}

std::size_t header_bytes(Values values) noexcept {
  return sizeof(std::uint64_t) + (values == Values::mean ? sizeof(float) : 0);
}

}  // namespace

// ---------------------------------------------------------------------------------------------

std::size_t max_sparse_bytes(Values values, std::size_t count) noexcept {
  const std::size_t groups = divide_up(count, kMembers);
  const std::size_t bitmap = divide_up<std::size_t>(count, 8);
  const std::size_t gaps = bitmap + 2 * groups + kBitSlack;  // a width, and bits left over
  const std::size_t numbers = values == Values::mean   ? 0
                              : values == Values::fp16 ? 4 * groups + 2 * count
                                                       : 4 * groups + 4 * count;
  return header_bytes(values) + gaps + numbers;
}

double place_bits(double density) noexcept {
  if (density >= 1) return 0;
  const double others = 1 - density;
  return -std::log2(density) - others / density * std::log2(others);
}

unsigned value_bits(Values values) noexcept {
  constexpr unsigned kBits[] = {32, 16, 8, 0};
  return kBits[static_cast<std::size_t>(values)];
}

SparseWriter::SparseWriter(Values values, std::byte* out) noexcept
    : values_(values), begin_(out), at_(out + header_bytes(values)) {}

void SparseWriter::write_group() noexcept {
  const std::span<const float> numbers(numbers_, members_);
  at_ = write_gaps({gaps_, members_}, at_);
  if (values_ == Values::fp32) at_ = write_floats(numbers, at_);
  if (values_ == Values::fp16) at_ = write_halves(numbers, at_);
  if (values_ == Values::int8) at_ = write_bytes(numbers, at_);
  if (values_ == Values::mean) {
    for (const float x : numbers) sum_ += std::isfinite(x) ? x : NAN;
  }
  written_ += members_;
  members_ = 0;
}

std::size_t SparseWriter::finish() noexcept {
  if (members_ > 0) write_group();
  store(begin_, written_);
  if (values_ == Values::mean) {
    const double mean = written_ == 0 ? 0 : sum_ / static_cast<double>(written_);
    store(begin_ + sizeof(written_), static_cast<float>(mean));
  }
  return static_cast<std::size_t>(at_ - begin_);
}

void scatter(std::span<const std::uint64_t> places, std::span<const float> numbers, TensorView out,
             Into into) noexcept {
  if (out.dtype == Dtype::f32) {
    auto* const to = static_cast<float*>(out.data);
    for (std::size_t i = 0; i < places.size(); ++i) {
      to[places[i]] = into == Into::add ? to[places[i]] + numbers[i] : numbers[i];
    }
    return;
  }
  auto* const to = static_cast<std::uint16_t*>(out.data);
  std::uint16_t halves[kMembers] = {};
  for (std::size_t i = 0; i < places.size(); ++i) halves[i] = to[places[i]];
  kernels::cast({numbers.data(), places.size(), Dtype::f32}, {halves, places.size(), out.dtype},
                into);
  for (std::size_t i = 0; i < places.size(); ++i) to[places[i]] = halves[i];
}

Status read_sparse(Values values, std::span<const std::byte> payload, std::size_t count,
                   NumberSink sink) noexcept {
  ByteReader bytes(payload);
  std::uint64_t left;
  float mean = 0;
  if (!bytes.read(left) || (values == Values::mean && !bytes.read(mean))) return Status::corrupt;
  std::uint64_t next = 0;
  while (left > 0) {
    std::uint64_t places[kMembers];
    float numbers[kMembers];
    const auto members = static_cast<std::size_t>(std::min<std::uint64_t>(left, kMembers));
    const std::span<float> own(numbers, members);
    if (values == Values::mean) std::fill(own.begin(), own.end(), mean);
    if (!read_gaps(bytes, count, next, {places, members}) || !read_numbers(values, bytes, own)) {
      return Status::corrupt;
    }
    sink({places, members}, own);
    left -= members;
  }
  return bytes.empty() ? Status::ok : Status::corrupt;
}

}  // namespace gradwire
