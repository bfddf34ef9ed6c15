#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "codec/kernels/grid_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/grid_blocks_encode.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/grid_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
using kernels::Symbols;

// ---------------------------------------------------------------------------------------------
// Sums over a block

/// The numbers of one block, padded with zeros to kBlock.
HWY_INLINE const float* block_floats(ConstTensorView x, size_t first, size_t n, float* scratch) {
  const float* floats = as_floats(x, first, n, scratch);
  if (HWY_LIKELY(n == kBlock)) return floats;
  if (floats != scratch) std::memcpy(scratch, floats, n * sizeof(float));
  std::fill(scratch + n, scratch + kBlock, 0.0f);
  return scratch;
}

HWY_NOINLINE double exact_energy(
    const float* x) {  // for what squares to more or less than a float holds
  double sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::isfinite(sum) ? sum : NAN;
}

HWY_INLINE bool is_zero(const float* x) {
  const hn::RebindToUnsigned<F32> bits;
  auto any = hn::Zero(bits);
  for (size_t i = 0; i < kBlock; i += kLanes) {
    any = hn::Or(any, hn::BitCast(bits, hn::Abs(hn::LoadU(F32(), x + i))));
  }
  return hn::AllTrue(bits, hn::Eq(any, hn::Zero(bits)));
}

HWY_INLINE double block_energy(const float* x) {
  VF sums[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(F32());
  for (size_t i = 0; i < kBlock; i += 16) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      const VF part = hn::LoadU(F32(), x + i + v * kLanes);
      sums[v] = hn::Add(sums[v], hn::Mul(part, part));
    }
  }
  const float sum = sum_lanes(sums);
  if (HWY_LIKELY(sum > 0x1p-80f && sum < 0x1p+120f)) return sum;
  return is_zero(x) ? 0 : exact_energy(x);  // as most of an embedding's gradient is
}

void grid_energies(ConstTensorView chunk, double* energies) {
  HWY_ALIGN float scratch[kBlock];
  for (size_t first = 0, b = 0; first < chunk.count; first += kBlock, ++b) {
    const size_t n = HWY_MIN(kBlock, chunk.count - first);
    const float* x = block_floats(chunk, first, n, scratch);
    for (size_t i = 0; i < kBlock; i += 16) prefetch(x + i);
    energies[b] = block_energy(x);
  }
}

/// The mean of the squared error over the random bits of each number, summed up.
HWY_INLINE double block_error(const float* x, float step, Rounding rounding) {
  const VF factor = hn::Set(F32(), 1.0f / step);
  VF sums[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(F32());
  for (size_t i = 0; i < kBlock; i += 16) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      const VF t = hn::Mul(hn::LoadU(F32(), x + i + v * kLanes), factor);
      const VF down = hn::Sub(t, hn::Floor(t));
      const VF up = hn::Sub(hn::Set(F32(), 1.0f), down);
      const VF near = hn::Min(down, up);
      const VF error = rounding == Rounding::nearest ? hn::Mul(near, near) : hn::Mul(down, up);
      sums[v] = hn::Add(sums[v], error);
    }
  }
  return static_cast<double>(sum_lanes(sums)) * step * step;
}

void grid_errors(ConstTensorView chunk, const Quantization& how, double* errors) {
  HWY_ALIGN float scratch[kBlock];
  for (size_t first = 0, b = 0; first < chunk.count; first += kBlock, ++b) {
    const size_t n = HWY_MIN(kBlock, chunk.count - first);
    const float step = how.steps[b];
    if (!(step > 0)) {
      errors[b] = 0;
    } else if (how.rounding == Rounding::dither) {
      errors[b] = static_cast<double>(step) * step / 12 * static_cast<double>(n);
    } else {
      errors[b] = block_error(block_floats(chunk, first, n, scratch), step, how.rounding);
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Numbers to integers. The 16-bit integers of a block stay "mixed" (rans-inl.h): 4 * kLanes at a
// time as the vectors (a, b) and (c, d).

/// Where number i of a block stands among mixed integers.
HWY_INLINE size_t mixed_index(size_t i) {
  if constexpr (kLanes == 4) return i;
  const size_t vector = i % kUnit / 8;
  const size_t lane = i % 8;
  return i / kUnit * kUnit + vector / 2 * 16 + lane / 4 * 8 + vector % 2 * 4 + lane % 4;
}

struct Integers {
  HWY_ALIGN int16_t mixed[kBlock];
  uint32_t sum;  // of magnitudes
  uint32_t any;  // magnitudes, or'ed

  HWY_INLINE int at(size_t i) const { return mixed[mixed_index(i)]; }
};

template <Rounding kRounding>
HWY_INLINE void quantize_as(const float* x, float step, StreamKey key, uint64_t element,
                            Integers& to) {
  const I16x di16;
  const VF factor = hn::Set(F32(), 65536.0f / step);
  VI sum = hn::Zero(I32());
  VI any = hn::Zero(I32());
  RandomGroups groups(key, static_cast<uint32_t>(element / kGroup));
  for (size_t i = 0; i < kBlock; i += kGroup) {
    VI random[kGroupVectors];
    VI q[kGroupVectors];
    if constexpr (kRounding != Rounding::nearest) groups.draw(random);
    for (size_t v = 0; v < kGroupVectors; ++v) {
      const VI fixed = nearest_int(hn::Mul(hn::LoadU(F32(), x + i + v * kLanes), factor));
      const VI offset = kRounding == Rounding::nearest ? hn::Set(I32(), 0x8000) : random[v];
      q[v] = hn::ShiftRight<16>(hn::Add(fixed, offset));
      const VI magnitude = hn::Abs(q[v]);
      sum = hn::Add(sum, magnitude);
      any = hn::Or(any, magnitude);
    }
    for (size_t v = 0; v < kGroupVectors; v += 2) {
      hn::StoreU(hn::ReorderDemote2To(di16, q[v], q[v + 1]), di16, to.mixed + i + v * kLanes);
    }
  }
  HWY_ALIGN int32_t lanes[kLanes];
  hn::Store(any, I32(), lanes);
  to.any = 0;
  for (const int32_t lane : lanes) to.any |= static_cast<uint32_t>(lane);
  to.sum = static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(I32(), sum)));
}

HWY_INLINE void quantize_block(const float* x, float step, Rounding rounding, StreamKey key,
                               uint64_t element, Integers& to) {
  switch (rounding) {
    case Rounding::stochastic:
      return quantize_as<Rounding::stochastic>(x, step, key, element, to);
    case Rounding::nearest:
      return quantize_as<Rounding::nearest>(x, step, key, element, to);
    case Rounding::dither:
      return quantize_as<Rounding::dither>(x, step, key, element, to);
  }
}

// ---------------------------------------------------------------------------------------------
// Integers to symbols

/// Symbols of the integers without their `shift` low bits; returns whether there are escapes.
HWY_INLINE bool high_symbols(const Integers& q, int shift, uint8_t* symbols) {
  const I16x d;
  const auto zero = hn::Set(d, grid::kZeroSymbol);
  const auto top = hn::Set(d, 15);
  auto escaped = hn::Zero(d);
  for (size_t i = 0; i < kBlock; i += kUnit) {
    const auto ab = hn::Add(hn::ShiftRightSame(hn::LoadU(d, q.mixed + i), shift), zero);
    const auto cd = hn::Add(hn::ShiftRightSame(hn::LoadU(d, q.mixed + i + kUnit / 2), shift), zero);
    const auto ab_out = hn::VecFromMask(d, hn::Or(hn::Lt(ab, hn::Set(d, 1)), hn::Gt(ab, top)));
    const auto cd_out = hn::VecFromMask(d, hn::Or(hn::Lt(cd, hn::Set(d, 1)), hn::Gt(cd, top)));
    escaped = hn::Or(escaped, hn::Or(ab_out, cd_out));
    const auto mixed = hn::Or(hn::AndNot(ab_out, ab), hn::ShiftLeft<8>(hn::AndNot(cd_out, cd)));
    hn::StoreU(unmix(hn::BitCast(Bytes(), mixed)), Bytes(), symbols + i);
  }
  return !hn::AllTrue(d, hn::Eq(escaped, hn::Zero(d)));
}

HWY_INLINE void low_codes(const Integers& q, int shift, uint8_t* codes) {
  const I16x d;
  const auto mask = hn::Set(d, static_cast<int16_t>((1 << shift) - 1));
  for (size_t i = 0; i < kBlock; i += kUnit) {
    const auto ab = hn::And(hn::LoadU(d, q.mixed + i), mask);
    const auto cd = hn::And(hn::LoadU(d, q.mixed + i + kUnit / 2), mask);
    const auto mixed = hn::Or(ab, hn::ShiftLeft<8>(cd));
    hn::StoreU(unmix(hn::BitCast(Bytes(), mixed)), Bytes(), codes + i);
  }
}

/// Escaped integers, without their low bits, in order: a byte of twice the excess over 8 plus the
/// sign.
HWY_NOINLINE uint8_t* write_escapes(const Integers& q, int shift, const uint8_t* symbols, size_t n,
                                    uint8_t* to) {
  for (size_t i = 0; i < n; ++i) {
    if (symbols[i] != grid::kEscape) continue;
    const int high = q.at(i) >> shift;
    const int excess = std::abs(high) - grid::kMaxDirect - 1;
    const int code = 2 * excess + (high < 0);
    *to++ = static_cast<uint8_t>(std::min(code, kEscapeFollows));
    if (code < kEscapeFollows) continue;
    const int16_t whole = static_cast<int16_t>(high);
    std::memcpy(to, &whole, 2);
    to += 2;
  }
  return to;
}

/// More low bits and escapes than this do not pay: the block is sent as it is.
inline constexpr ptrdiff_t kMaxExtraBytes = 256;

/// Symbols and what goes with them; null when the block is better sent as it is.
HWY_INLINE uint8_t* write_block(const Integers& q, int shift, size_t n, uint8_t* symbols,
                                uint8_t* to) {
  uint8_t* end = to;
  if (shift > 0) {
    HWY_ALIGN uint8_t codes[kBlock + kPackSlack] = {};
    low_codes(q, shift, codes);
    pack(codes, n, shift, to);
    end += (n * static_cast<size_t>(shift) + 7) / 8;
  }
  if (HWY_UNLIKELY(high_symbols(q, shift, symbols))) {
    HWY_ALIGN uint8_t escapes[3 * kBlock];
    const size_t bytes =
        static_cast<size_t>(write_escapes(q, shift, symbols, n, escapes) - escapes);
    if (end - to + static_cast<ptrdiff_t>(bytes) > kMaxExtraBytes) return nullptr;
    std::memcpy(end, escapes, bytes);
    end += bytes;
  }
  return end;
}

HWY_INLINE std::byte* write_raw(const float* x, size_t n, std::byte* to) {
  std::memcpy(to, x, n * sizeof(float));
  return to + n * sizeof(float);
}

std::byte* grid_to_symbols(ConstTensorView chunk, const Quantization& how, Symbols& to,
                           std::byte* numbers) {
  HWY_ALIGN float scratch[kBlock];
  BlockKeys keys(how);
  Integers q;
  to.groups = 0;
  for (size_t first = 0, b = 0; first < chunk.count; first += kBlock, ++b) {
    const size_t n = HWY_MIN(kBlock, chunk.count - first);
    const float step = how.steps[b];
    to.classes[b] = grid::kZeroClass;
    if (step == 0) continue;
    const float* x = block_floats(chunk, first, n, scratch);
    to.classes[b] = grid::kRawClass;
    if (step > 0) {
      const uint64_t element = how.first_element + first;
      quantize_block(x, step, how.rounding, keys.at(element), element, q);
      const uint32_t sum =
          n == kBlock ? q.sum
                      : (q.sum * static_cast<uint32_t>(kBlock) + static_cast<uint32_t>(n) - 1) /
                            static_cast<uint32_t>(n);
      if (sum == 0 && how.rounding != Rounding::dither) {
        to.classes[b] = grid::kZeroClass;
        continue;
      }
      to.classes[b] = static_cast<uint8_t>(grid::class_of_sum(std::max(sum, 1u)));
    }
    if (to.classes[b] != grid::kRawClass) {
      uint8_t* const at = reinterpret_cast<uint8_t*>(numbers);
      uint8_t* const end = write_block(q, grid::shift_of(to.classes[b]), n,
                                       to.symbols + to.groups * kRansStates, at);
      if (end != nullptr) {
        to.groups += divide_up<size_t>(n, kRansStates);
        numbers += end - at;
        continue;
      }
      to.classes[b] = grid::kRawClass;
    }
    numbers = write_raw(x, n, numbers);
  }
  return numbers;
}

// ---------------------------------------------------------------------------------------------
// Without entropy coding, for slices that are too small for it

std::byte* grid_to_packed(ConstTensorView chunk, const Quantization& how, std::byte* to) {
  HWY_ALIGN float scratch[kBlock];
  HWY_ALIGN uint8_t codes[kBlock + kPackSlack] = {};
  BlockKeys keys(how);
  Integers q;
  for (size_t first = 0, b = 0; first < chunk.count; first += kBlock, ++b) {
    const size_t n = HWY_MIN(kBlock, chunk.count - first);
    const float step = how.steps[b];
    const float* x = block_floats(chunk, first, n, scratch);
    uint8_t width = step == 0 ? 0 : kernels::kRawWidth;
    if (step > 0) {
      const uint64_t element = how.first_element + first;
      quantize_block(x, step, how.rounding, keys.at(element), element, q);
      const bool zeros = q.any == 0 && how.rounding != Rounding::dither;
      const int bits = zeros ? 0 : static_cast<int>(std::bit_width(q.any)) + 1;  // with the sign
      if (bits <= 8) width = static_cast<uint8_t>(bits);
    }
    *to++ = std::byte{width};
    if (width == kernels::kRawWidth) {
      to = write_raw(x, n, to);
    } else if (width > 0) {
      std::fill(codes + n, codes + kBlock, uint8_t{0});
      for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(q.at(i) + (1 << (width - 1)));
      pack(codes, n, width, reinterpret_cast<uint8_t*>(to));
      to += (n * width + 7) / 8;
    }
  }
  return to;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(grid_energies);
HWY_EXPORT(grid_errors);
HWY_EXPORT(grid_to_symbols);
HWY_EXPORT(grid_to_packed);

void block_energies(ConstTensorView chunk, double* energies) noexcept {
  HWY_DYNAMIC_DISPATCH(grid_energies)(chunk, energies);
}

void expected_errors(ConstTensorView chunk, const Quantization& how, double* errors) noexcept {
  HWY_DYNAMIC_DISPATCH(grid_errors)(chunk, how, errors);
}

std::byte* to_symbols(ConstTensorView chunk, const Quantization& how, Symbols& symbols,
                      std::byte* numbers) noexcept {
  return HWY_DYNAMIC_DISPATCH(grid_to_symbols)(chunk, how, symbols, numbers);
}

std::byte* to_packed(ConstTensorView chunk, const Quantization& how, std::byte* to) noexcept {
  return HWY_DYNAMIC_DISPATCH(grid_to_packed)(chunk, how, to);
}

}  // namespace gradwire::kernels
#endif
