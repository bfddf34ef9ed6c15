#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/kernels/bucket_meta.h"
#include "codec/kernels/bucketed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/bucketed_encode.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/bitpack-inl.h"
#include "codec/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
using kernels::Bucket;
using kernels::Bucketed;
using kernels::kMaxTileBuckets;
using kernels::kTile;
using kernels::Range;
using kernels::Scheme;

// ---------------------------------------------------------------------------------------------
// Measuring a bucket

/// The range of numbers that arrive in pieces, in two accumulators to hide latencies.
struct RangeFinder {
  VF low[2], high[2];
  VF sum[2];  // not finite as soon as such a number passes; large ones overflow it, too
  bool finite = true;

  // Written out because an implicit constructor would not get the target's instructions.
  HWY_INLINE RangeFinder() {
    for (int k = 0; k < 2; ++k) {
      low[k] = hn::Set(F32(), INFINITY);
      high[k] = hn::Set(F32(), -INFINITY);
      sum[k] = hn::Zero(F32());
    }
  }
  HWY_INLINE void take_vector(VF x, int k) {
    low[k] = hn::Min(low[k], x);
    high[k] = hn::Max(high[k], x);
    sum[k] = hn::Add(sum[k], x);
  }
  HWY_INLINE void take_group(const float* x) {
    prefetch(x);
    prefetch(x + kGroup / 2);
    for (size_t v = 0; v < kGroupVectors; ++v) take_vector(hn::LoadU(F32(), x + v * kLanes), v % 2);
  }
  HWY_INLINE void take(const float* x, size_t n) {
    size_t i = 0;
    for (; i + kGroup <= n; i += kGroup) take_group(x + i);
    for (; i + kLanes <= n; i += kLanes) take_vector(hn::LoadU(F32(), x + i), 0);
    if (i < n) take_rest(x + i, n - i);
    if (HWY_UNLIKELY(!hn::AllTrue(F32(), hn::IsFinite(total())))) recheck(x, n);
  }
  HWY_INLINE void take_rest(const float* x, size_t n) {
    HWY_ALIGN float padded[kLanes];
    for (size_t i = 0; i < kLanes; ++i) padded[i] = x[i < n ? i : 0];
    take_vector(hn::Load(F32(), padded), 1);
  }
  HWY_NOINLINE void recheck(const float* x, size_t n) {
    for (int k = 0; k < 2; ++k) sum[k] = hn::Zero(F32());
    for (size_t i = 0; i < n; ++i) finite = finite && std::isfinite(x[i]);
  }
  HWY_INLINE VF total() const { return hn::Add(sum[0], sum[1]); }
  HWY_INLINE Range range() const {
    const VF lowest = hn::Min(low[0], low[1]);
    const VF highest = hn::Max(high[0], high[1]);
    return {hn::GetLane(hn::MinOfLanes(F32(), lowest)), hn::GetLane(hn::MaxOfLanes(F32(), highest)),
            finite};
  }
};

/// The sum of |x| in an order that no vector width changes: 8 lanes per 2048 numbers, then in
/// double.
struct MagnitudeSum {
  double total = 0;

  HWY_INLINE void take(const float* x, size_t n) {
    HWY_ALIGN float lanes[8] = {};
    constexpr size_t kParts = 8 / kLanes;
    VF sums[kParts];
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(F32());
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      for (size_t p = 0; p < kParts; ++p) {
        sums[p] = hn::Add(sums[p], hn::Abs(hn::LoadU(F32(), x + i + p * kLanes)));
      }
    }
    for (size_t p = 0; p < kParts; ++p) hn::Store(sums[p], F32(), lanes + p * kLanes);
    for (size_t lane = 0; i < n; ++i, ++lane) lanes[lane] += std::fabs(x[i]);
    double sum = 0;
    for (const float lane : lanes) sum += lane;
    if (!(sum <= FLT_MAX)) {  // overflowed, or not finite at all
      sum = 0;
      for (size_t j = 0; j < n; ++j) sum += std::fabs(static_cast<double>(x[j]));
    }
    total += sum;
  }
};

template <class Taker>
HWY_INLINE void take_all(ConstTensorView x, size_t first, size_t n, Taker& taker) {
  if (x.dtype == Dtype::f32 && n <= kTile)
    return taker.take(static_cast<const float*>(x.data) + first, n);
  HWY_ALIGN float scratch[kTile];
  for (size_t i = 0; i < n; i += kTile) {
    const size_t part = HWY_MIN(kTile, n - i);
    taker.take(as_floats(x, first + i, part, scratch), part);
  }
}

HWY_INLINE Bucket measure(const Bucketed& how, ConstTensorView x, size_t first, size_t n) {
  if (how.scheme == Scheme::sign) {
    MagnitudeSum sum;
    take_all(x, first, n, sum);
    if (!std::isfinite(sum.total)) return kernels::not_finite();
    return kernels::magnitude_bucket(static_cast<float>(sum.total / static_cast<double>(n)),
                                     how.meta);
  }
  RangeFinder finder;
  take_all(x, first, n, finder);
  const Range range = finder.range();
  if (how.scheme == Scheme::uniform) {
    return kernels::uniform_bucket(range, (1 << how.bits) - 1, how.meta);
  }
  if (!range.finite) return kernels::not_finite();
  return kernels::magnitude_bucket(std::max(std::fabs(range.low), std::fabs(range.high)), how.meta);
}

// ---------------------------------------------------------------------------------------------
// Numbers to codes. A quantizer maps a vector of numbers and one of random bits (0..65535) to
// codes.

struct UniformQuantizer {
  VF low, factor;

  UniformQuantizer(float lowest, float parts)
      : low(hn::Set(F32(), lowest)), factor(hn::Set(F32(), parts)) {}
  UniformQuantizer(const Bucket& bucket, int)
      : UniformQuantizer(bucket.low * bucket.prescale, bucket.factor) {}

  /// The level in the upper half of each lane.
  HWY_INLINE VI in_parts(VF x, VI random) const {
    return hn::Add(nearest_int(hn::Mul(hn::Sub(x, low), factor)), random);
  }
  HWY_INLINE VI operator()(VF x, VI random) const {
    return hn::ShiftRight<16>(in_parts(x, random));
  }
};

struct ExponentialQuantizer {
  VF factor, smallest, small_factor;
  VI bias;
  int sign_shift;

  ExponentialQuantizer(const Bucket& bucket, int bits)
      : factor(hn::Set(F32(), bucket.factor)),
        smallest(hn::Set(F32(), std::ldexp(1.0f, 2 - (1 << (bits - 1))))),
        small_factor(hn::Set(F32(), std::ldexp(1.0f, (1 << (bits - 1)) - 2))),
        bias(hn::Set(I32(), 127 - ((1 << (bits - 1)) - 1))),
        sign_shift(bits - 1) {}

  HWY_INLINE VI operator()(VF x, VI random) const {
    const VF t = hn::Min(hn::Mul(hn::Abs(x), factor), hn::Set(F32(), 1.0f));
    // Between two powers of two a float's bits are linear in its value: adding random bits below
    // the exponent rounds to either with the right odds.
    const VI carried = hn::Add(hn::BitCast(I32(), t), hn::ShiftLeft<7>(random));
    const VI level = hn::Sub(hn::ShiftRight<23>(carried), bias);
    const VF below = hn::Mul(hn::Mul(hn::Min(t, smallest), small_factor), hn::Set(F32(), 65536.0f));
    const VI zero_or_one = hn::ShiftRight<16>(hn::Add(nearest_int(below), random));
    const VI magnitude =
        hn::IfThenElse(hn::RebindMask(I32(), hn::Lt(t, smallest)), zero_or_one, level);
    const VU sign = hn::ShiftRight<31>(hn::BitCast(U32(), x));
    return hn::Or(magnitude, hn::BitCast(I32(), hn::ShiftLeftSame(sign, sign_shift)));
  }
};

struct SignQuantizer {
  SignQuantizer(const Bucket&, int) {}
  HWY_INLINE VI operator()(VF x, VI) const {
    return hn::BitCast(I32(), hn::ShiftRight<31>(hn::BitCast(U32(), x)));
  }
};

/// Codes for n numbers of one bucket, `element` being the first one's place in its tensor. Writes
/// up to kLanes codes more.
template <bool kRandom, class Quantizer>
HWY_INLINE void quantize(const Quantizer& quantizer, const float* x, size_t n, uint64_t element,
                         StreamKey key, uint8_t* codes) {
  const VI half = hn::Set(I32(), 0x8000);
  size_t i = 0;
  if (element % kGroup == 0) {
    RandomGroups groups(key, static_cast<uint32_t>(element / kGroup));
    for (; i + kGroup <= n; i += kGroup) {
      VI random[kGroupVectors];
      VI code[kGroupVectors];
      if constexpr (kRandom) groups.draw(random);
      for (size_t v = 0; v < kGroupVectors; ++v) {
        code[v] = quantizer(hn::LoadU(F32(), x + i + v * kLanes), kRandom ? random[v] : half);
      }
      for (size_t v = 0; v < kGroupVectors; v += 4) {
        store_bytes(code[v], code[v + 1], code[v + 2], code[v + 3], codes + i + v * kLanes);
      }
    }
  }
  for (; i < n; i += kLanes) {
    const VF part = i + kLanes <= n ? hn::LoadU(F32(), x + i) : load_few(x + i, n - i);
    const VI random = kRandom ? draw_vector(key, element + i) : half;
    const VI code = quantizer(part, random);
    hn::StoreU(hn::DemoteTo(U8(), code), U8(), codes + i);
  }
}

/// Brings the numbers of a bucket that has a prescale into range. What rounding of the meta left
/// outside of a uniform bucket's levels is clamped to them.
HWY_NOINLINE void scale_extreme(const Bucketed& how, const Bucket& bucket, const float* x, size_t n,
                                float* scaled) {
  float low = -INFINITY;
  float high = INFINITY;
  if (how.scheme == Scheme::uniform) {
    low = bucket.low * bucket.prescale;
    high = low + bucket.scale * bucket.prescale * static_cast<float>((1 << how.bits) - 1);
  }
  for (size_t i = 0; i < n; ++i) scaled[i] = std::clamp(x[i] * bucket.prescale, low, high);
}

template <class Quantizer>
HWY_INLINE void quantize_bucket(const Bucketed& how, const Bucket& bucket, const float* x, size_t n,
                                uint64_t element, StreamKey key, uint8_t* codes) {
  HWY_ALIGN float scaled[kTile];
  if (HWY_UNLIKELY(std::isnan(bucket.scale))) {
    std::memset(codes, 0, n);
    return;
  }
  if (HWY_UNLIKELY(bucket.prescale != 1)) {
    scale_extreme(how, bucket, x, n, scaled);
    x = scaled;
  }
  const Quantizer quantizer(bucket, how.bits);
  if (how.rounding == Rounding::stochastic) {
    quantize<true>(quantizer, x, n, element, key, codes);
  } else {
    quantize<false>(quantizer, x, n, element, key, codes);
  }
}

// ---------------------------------------------------------------------------------------------
// A tile of uniform buckets at once: where buckets do not straddle tiles and nothing is extreme,
// which is nearly always. Gives what `measure` and `quantize` give, in half the instructions.

/// What is to be known of a tile's buckets, one array per property.
struct TileBuckets {
  HWY_ALIGN float low[kMaxTileBuckets];
  HWY_ALIGN float unit[kMaxTileBuckets];
  HWY_ALIGN float factor[kMaxTileBuckets];
};

/// Lane k of the result: the lanes of the k-th of kLanes vectors, reduced by `op`.
template <class Op>
HWY_INLINE VF reduce_each(const float* vectors, Op op) {
  const hn::Repartition<uint64_t, F32> d64;
  VF pairs[kLanes / 2];
  for (size_t k = 0; k < kLanes / 2; ++k) {
    const VF a = hn::Load(F32(), vectors + 2 * k * kLanes);
    const VF b = hn::Load(F32(), vectors + (2 * k + 1) * kLanes);
    pairs[k] = op(hn::InterleaveLower(F32(), a, b), hn::InterleaveUpper(F32(), a, b));
  }
  VF quads[kLanes / 4];
  for (size_t k = 0; k < kLanes / 4; ++k) {
    const auto a = hn::BitCast(d64, pairs[2 * k]);
    const auto b = hn::BitCast(d64, pairs[2 * k + 1]);
    quads[k] = op(hn::BitCast(F32(), hn::InterleaveLower(d64, a, b)),
                  hn::BitCast(F32(), hn::InterleaveUpper(d64, a, b)));
  }
  if constexpr (kLanes == 8) {
    return op(hn::ConcatLowerLower(F32(), quads[1], quads[0]),
              hn::ConcatUpperUpper(F32(), quads[1], quads[0]));
  } else {
    return quads[0];
  }
}

/// The ranges of a tile's buckets, still spread over lanes.
struct TileRanges {
  HWY_ALIGN float low[kMaxTileBuckets * kLanes];
  HWY_ALIGN float high[kMaxTileBuckets * kLanes];

  /// Takes a group of bucket k. Wrong when a number is NaN, which `quantize_tile` finds out.
  HWY_INLINE void take_group(const float* x, size_t k, bool first_of_bucket) {
    VF lows[2];
    VF highs[2];
    for (size_t v = 0; v < 2; ++v) lows[v] = highs[v] = hn::LoadU(F32(), x + v * kLanes);
    for (size_t v = 2; v < kGroupVectors; ++v) {
      const VF part = hn::LoadU(F32(), x + v * kLanes);
      lows[v % 2] = hn::Min(lows[v % 2], part);
      highs[v % 2] = hn::Max(highs[v % 2], part);
    }
    VF lowest = hn::Min(lows[0], lows[1]);
    VF highest = hn::Max(highs[0], highs[1]);
    if (!first_of_bucket) {
      lowest = hn::Min(lowest, hn::Load(F32(), low + k * kLanes));
      highest = hn::Max(highest, hn::Load(F32(), high + k * kLanes));
    }
    hn::Store(lowest, F32(), low + k * kLanes);
    hn::Store(highest, F32(), high + k * kLanes);
  }
};

/// kLanes times `uniform_bucket`, from place k on. False when one of them needs a prescale.
HWY_INLINE bool tile_buckets(VF low, VF high, int levels, Meta meta, size_t k, TileBuckets& to) {
  const U32 du;
  low = hn::Add(low, hn::Zero(F32()));
  if (meta == Meta::bf16) {
    const VU bits = hn::BitCast(du, low);
    const VU negative = hn::BitCast(du, hn::BroadcastSignBit(hn::BitCast(I32(), bits)));
    const VU down = hn::Add(bits, hn::And(negative, hn::Set(du, 0xffff)));
    low = hn::BitCast(F32(), hn::And(down, hn::Set(du, 0xffff0000u)));
  }
  VF unit = hn::Max(hn::Div(hn::Sub(high, low), hn::Set(F32(), static_cast<float>(levels))),
                    hn::Zero(F32()));
  if (meta == Meta::bf16) {
    const VU up = hn::Add(hn::BitCast(du, unit), hn::Set(du, 0xffff));
    unit = hn::BitCast(F32(), hn::And(up, hn::Set(du, 0xffff0000u)));
  }
  const VF reach = hn::Max(hn::Max(hn::Abs(low), hn::Abs(high)), unit);
  const auto usual = hn::And(hn::Ge(unit, hn::Set(F32(), kernels::kTooSmall)),
                             hn::Le(reach, hn::Set(F32(), kernels::kTooLarge)));
  if (!hn::AllTrue(F32(), usual)) return false;  // before a division by zero
  hn::Store(low, F32(), to.low + k);
  hn::Store(unit, F32(), to.unit + k);
  hn::Store(hn::Div(hn::Set(F32(), kernels::kLevelParts), unit), F32(), to.factor + k);
  return true;
}

/// The buckets of a tile, or false: then that is left to `measure`.
HWY_INLINE bool describe_tile(const Bucketed& how, TileRanges& ranges, TileBuckets& to) {
  const size_t count = kTile / how.bucket;
  for (size_t k = count; k % kLanes != 0; ++k) {  // unused lanes repeat the first bucket
    for (size_t i = 0; i < kLanes; ++i) {
      ranges.low[k * kLanes + i] = ranges.low[i];
      ranges.high[k * kLanes + i] = ranges.high[i];
    }
  }
  for (size_t k = 0; k < count; k += kLanes) {
    const VF low =
        reduce_each(ranges.low + k * kLanes, [](VF a, VF b) HWY_ATTR { return hn::Min(a, b); });
    const VF high =
        reduce_each(ranges.high + k * kLanes, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
    if (!tile_buckets(low, high, (1 << how.bits) - 1, how.meta, k, to)) return false;
  }
  return true;
}

/// `store_bucket` for `count` buckets.
HWY_INLINE void store_buckets(const TileBuckets& buckets, size_t count, Meta meta, std::byte* to) {
  HWY_ALIGN float words[2 * kMaxTileBuckets];
  for (size_t k = 0; k < count; k += kLanes) {
    const VF unit = hn::Load(F32(), buckets.unit + k);
    const VF low = hn::Load(F32(), buckets.low + k);
    if (meta == Meta::bf16) {
      const VU upper = hn::ShiftRight<16>(hn::BitCast(U32(), unit));
      hn::Store(hn::Or(hn::BitCast(F32(), upper), low), F32(), words + k);
    } else {
      hn::StoreInterleaved2(unit, low, F32(), words + 2 * k);
    }
  }
  std::memcpy(to, words, count * (meta == Meta::bf16 ? 4 : 8));
}

/// The first 8 bytes of each 128-bit block: 4 of (a, b) or (c, d)'s halves, see pack_four_bits.
template <class D>
HWY_INLINE void store_pairs(D, hn::Vec<D> gathered, uint8_t* to) {
  if constexpr (hn::MaxLanes(D()) == 32) {
    const hn::Half<D> half;
    // Blocks hold a0a1 b0b1 c0c1 d0d1 | a2a3 b2b3 c2c3 d2d3 as 16-bit lanes.
    const hn::Repartition<uint16_t, hn::Half<D>> d16;
    const auto low = hn::BitCast(d16, hn::LowerHalf(half, gathered));
    const auto high = hn::BitCast(d16, hn::UpperHalf(half, gathered));
    hn::StoreU(hn::BitCast(half, hn::InterleaveLower(d16, low, high)), half, to);
  } else {
    hn::StoreU(hn::LowerHalf(hn::Half<D>(), gathered), hn::Half<D>(), to);
  }
}

/// Packs 32 levels 0..15, each in the upper half of its lane, to 16 bytes; returns the upper
/// halves, or'ed. (The general `pack` works on any width; this one, for the width that is used
/// most, needs half the instructions.)
HWY_INLINE VI pack_four_bits(const VI* parts, uint8_t* to) {
  const hn::Repartition<uint16_t, I32> d16;
  const hn::Repartition<uint64_t, I32> d64;
  VI uppers = hn::Zero(I32());
  for (size_t v = 0; v < kGroupVectors; v += 4) {
    // 32-bit lanes hold (a, b) and (c, d); a byte takes the lanes 2j and 2j + 1 of one vector.
    const auto ab = hn::BitCast(d64, hn::OddEven(hn::BitCast(d16, parts[v + 1]),
                                                 hn::BitCast(d16, hn::ShiftRight<16>(parts[v]))));
    const auto cd =
        hn::BitCast(d64, hn::OddEven(hn::BitCast(d16, parts[v + 3]),
                                     hn::BitCast(d16, hn::ShiftRight<16>(parts[v + 2]))));
    const auto ab_bytes = hn::Or(ab, hn::ShiftRight<28>(ab));
    const auto cd_bytes = hn::Or(cd, hn::ShiftRight<28>(cd));
    const auto mixed = hn::BitCast(Bytes(), hn::Or(ab_bytes, hn::ShiftLeft<8>(cd_bytes)));
    // Of each 64-bit lane j the first four bytes are pair j of a, c, b, d.
    alignas(16) static constexpr uint8_t kGather[16] = {
        0, 8, 2, 10, 1, 9, 3, 11, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
    const auto gathered = hn::TableLookupBytesOr0(mixed, hn::LoadDup128(Bytes(), kGather));
    store_pairs(Bytes(), gathered, to + v * kLanes / 2);
    uppers = hn::Or(uppers, hn::BitCast(I32(), hn::Or(ab, cd)));
  }
  return uppers;
}

/// The codes of a tile whose buckets are known, while the tile behind it is measured: so memory has
/// work all the time. False when one of the numbers is NaN.
template <bool kRandom, bool kFourBits>
HWY_INLINE bool quantize_tile(const Bucketed& how, const TileBuckets& buckets, const float* x,
                              const float* next, TileRanges& next_ranges, uint64_t element,
                              StreamKey key, uint8_t* to) {
  HWY_ALIGN uint8_t codes[kTile + kPackSlack];
  const int groups_shift = std::countr_zero(how.bucket / static_cast<uint32_t>(kGroup));
  RandomGroups groups(key, static_cast<uint32_t>(element / kGroup));
  VI uppers = hn::Zero(I32());  // upper halves of levels, or'ed; that of NaN has its sign set
  for (size_t g = 0; g < kTile / kGroup; ++g, x += kGroup, next += kGroup) {
    const size_t k = g >> groups_shift;
    prefetch(next);
    prefetch(next + kGroup / 2);
    next_ranges.take_group(next, k, g == k << groups_shift);
    const UniformQuantizer quantizer(buckets.low[k], buckets.factor[k]);
    VI random[kGroupVectors];
    VI parts[kGroupVectors];
    if constexpr (kRandom) groups.draw(random);
    for (size_t v = 0; v < kGroupVectors; ++v) {
      const VF part = hn::LoadU(F32(), x + v * kLanes);
      parts[v] = quantizer.in_parts(part, kRandom ? random[v] : hn::Set(I32(), 0x8000));
    }
    if constexpr (kFourBits) {
      uppers = hn::Or(uppers, pack_four_bits(parts, to + g * kGroup / 2));
    } else {
      for (VI& part : parts) {
        part = hn::ShiftRight<16>(part);
        uppers = hn::Or(uppers, part);
      }
      for (size_t v = 0; v < kGroupVectors; v += 4) {
        store_bytes(parts[v], parts[v + 1], parts[v + 2], parts[v + 3],
                    codes + g * kGroup + v * kLanes);
      }
    }
  }
  if constexpr (!kFourBits) {
    std::memset(codes + kTile, 0, kPackSlack);
    pack(codes, kTile, how.bits, to);
  }
  const hn::Repartition<int16_t, I32> d16;
  return hn::AllFalse(d16, hn::Lt(hn::BitCast(d16, uppers), hn::Zero(d16)));
}

HWY_INLINE bool by_tile(const Bucketed& how) {
  return how.scheme == Scheme::uniform && kTile % how.bucket == 0 && how.bucket % kGroup == 0;
}

/// One whole tile of whole buckets that `ranges` describes, which then describe the one at `next`.
/// False when the tile is left to the general way, whatever was written.
HWY_INLINE bool encode_tile(const Bucketed& how, const float* x, const float* next,
                            TileRanges& ranges, uint64_t element, StreamKey key, std::byte* meta,
                            uint8_t* packed) {
  TileBuckets buckets;
  if (!describe_tile(how, ranges, buckets)) return false;
  store_buckets(buckets, kTile / how.bucket, how.meta, meta);
  const auto quantize_with = [&](auto random, auto four) HWY_ATTR {
    return quantize_tile<random(), four()>(how, buckets, x, next, ranges, element, key, packed);
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (how.rounding == Rounding::stochastic) {
    return how.bits == 4 ? quantize_with(kYes, kYes) : quantize_with(kYes, kNo);
  }
  return how.bits == 4 ? quantize_with(kNo, kYes) : quantize_with(kNo, kNo);
}

HWY_INLINE void measure_tile(const Bucketed& how, const float* x, TileRanges& ranges) {
  const int groups_shift = std::countr_zero(how.bucket / static_cast<uint32_t>(kGroup));
  for (size_t g = 0; g < kTile / kGroup; ++g) {
    const size_t k = g >> groups_shift;
    ranges.take_group(x + g * kGroup, k, g == k << groups_shift);
  }
}

/// Encodes as many tiles of x from `tile` on as can be encoded by tile; returns where it stopped.
HWY_INLINE size_t encode_tiles(const Bucketed& how, ConstTensorView x, size_t tile,
                               uint64_t element, StreamKey key, std::byte* meta, uint8_t* packed) {
  HWY_ALIGN float scratch[2][kTile];
  TileRanges ranges;
  const uint64_t region_left = kRegionElements - element % kRegionElements;
  const size_t tiles = HWY_MIN(x.count - tile, region_left) / kTile;
  if (tiles == 0) return tile;
  const float* numbers = as_floats(x, tile, kTile, scratch[0]);
  measure_tile(how, numbers, ranges);
  for (size_t t = 0; t < tiles; ++t) {
    // The last tile is measured again instead of one behind it.
    const float* const next =
        t + 1 < tiles ? as_floats(x, tile + kTile, kTile, scratch[(t + 1) % 2]) : numbers;
    if (!encode_tile(how, numbers, next, ranges, element, key, meta, packed)) break;
    numbers = next;
    tile += kTile;
    element += kTile;
    meta += how.meta_bytes(kTile);
    packed += kTile / 8 * how.bits;
  }
  return tile;
}

// ---------------------------------------------------------------------------------------------

HWY_INLINE void store_bucket(const Bucketed& how, const Bucket& bucket, std::byte*& meta) {
  kernels::store_meta(meta, bucket.scale, how.meta);
  if (how.scheme == Scheme::uniform) kernels::store_meta(meta, bucket.low, how.meta);
}

template <class Quantizer>
void encode_with(const Bucketed& how, ConstTensorView x, const EncodeOptions& options,
                 std::byte* out) {
  const uint64_t folded_key = fold(options.random);
  std::byte* meta = out;
  uint8_t* packed = reinterpret_cast<uint8_t*>(out) + how.meta_bytes(x.count);
  HWY_ALIGN float scratch[kTile];
  HWY_ALIGN uint8_t codes[kTile + kPackSlack];
  Bucket buckets[kTile + 1];
  size_t bucket_end = 0;  // of the last bucket measured
  for (size_t tile = 0, tile_end; tile < x.count; tile = tile_end) {
    const uint64_t element = options.first_element + tile;
    const StreamKey key = stream_key(folded_key, element);
    if (bucket_end == tile && by_tile(how)) {
      const size_t end = encode_tiles(how, x, tile, element, key, meta, packed);
      meta += how.meta_bytes(end - tile);
      packed += (end - tile) / 8 * how.bits;
      tile_end = bucket_end = end;
      if (end > tile) continue;
    }
    const uint64_t region_left = kRegionElements - element % kRegionElements;
    tile_end = tile + HWY_MIN(HWY_MIN(kTile, x.count - tile), region_left);
    const float* numbers = as_floats(x, tile, tile_end - tile, scratch);
    size_t measured = bucket_end > tile ? 1 : 0;  // buckets[0] then reaches in from the tile before
    const size_t first_end = measured ? bucket_end : HWY_MIN(tile + how.bucket, x.count);
    while (bucket_end < tile_end) {
      const size_t begin = bucket_end;
      bucket_end = HWY_MIN(begin + how.bucket, x.count);
      buckets[measured] = measure(how, x, begin, bucket_end - begin);
      store_bucket(how, buckets[measured++], meta);
    }
    size_t at = tile;
    for (size_t k = 0, end = first_end; k < measured; ++k, end += how.bucket) {
      end = HWY_MIN(end, tile_end);
      quantize_bucket<Quantizer>(how, buckets[k], numbers + (at - tile), end - at,
                                 element + (at - tile), key, codes + (at - tile));
      at = end;
    }
    buckets[0] = buckets[measured - 1];
    std::memset(codes + (tile_end - tile), 0, kPackSlack);
    pack(codes, tile_end - tile, how.bits, packed);
    packed += (tile_end - tile) / 8 * how.bits;
  }
}

void bucketed_encode(const Bucketed& how, ConstTensorView x, const EncodeOptions& options,
                     std::byte* out) {
  switch (how.scheme) {
    case Scheme::uniform:
      return encode_with<UniformQuantizer>(how, x, options, out);
    case Scheme::exponential:
      return encode_with<ExponentialQuantizer>(how, x, options, out);
    case Scheme::sign:
      return encode_with<SignQuantizer>(how, x, options, out);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(bucketed_encode);

void encode_bucketed(const Bucketed& how, ConstTensorView x, const EncodeOptions& options,
                     std::byte* out) noexcept {
  HWY_DYNAMIC_DISPATCH(bucketed_encode)(how, x, options, out);
}

}  // namespace gradwire::kernels
#endif
