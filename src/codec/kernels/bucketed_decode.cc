#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "codec/kernels/bucket_meta.h"
#include "codec/kernels/bucketed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/bucketed_decode.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/bitpack-inl.h"
#include "codec/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
using kernels::Bucket;
using kernels::Bucketed;
using kernels::kTile;
using kernels::Scheme;

struct UniformDequantizer {
  VF low, unit;
  UniformDequantizer(const Bucket& bucket, int)
      : low(hn::Set(F32(), bucket.low)), unit(hn::Set(F32(), bucket.scale)) {}
  HWY_INLINE VF operator()(VI code) const {
    return hn::Add(low, hn::Mul(unit, hn::ConvertTo(F32(), code)));
  }
};

struct ExponentialDequantizer {
  VF norm;
  VI level_mask, bias;
  int sign_shift;
  ExponentialDequantizer(const Bucket& bucket, int bits)
      : norm(hn::Set(F32(), bucket.scale)),
        level_mask(hn::Set(I32(), (1 << (bits - 1)) - 1)),
        bias(hn::Set(I32(), 127 - ((1 << (bits - 1)) - 1))),
        sign_shift(32 - bits) {}
  HWY_INLINE VF operator()(VI code) const {
    const VI level = hn::And(code, level_mask);
    const VF power = hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(level, bias)));
    const auto some = hn::RebindMask(F32(), hn::Gt(level, hn::Zero(I32())));
    const VF magnitude = hn::Mul(norm, hn::IfThenElseZero(some, power));
    const VI sign = hn::And(hn::ShiftLeftSame(code, sign_shift), hn::Set(I32(), INT32_MIN));
    return hn::Xor(magnitude, hn::BitCast(F32(), sign));
  }
};

struct SignDequantizer {
  VF mean;
  SignDequantizer(const Bucket& bucket, int) : mean(hn::Set(F32(), bucket.scale)) {}
  HWY_INLINE VF operator()(VI code) const {
    return hn::Xor(mean, hn::BitCast(F32(), hn::ShiftLeft<31>(code)));
  }
};

template <bool kAdd, class Dequantizer>
HWY_INLINE void dequantize(const Dequantizer& dequantizer, const uint8_t* codes, size_t n,
                           float* out) {
  size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    prefetch(out + i);
    prefetch(out + i + kGroup / 2);
    for (size_t v = 0; v < kGroup; v += kLanes) {
      VF x = dequantizer(load_bytes(codes + i + v));
      if constexpr (kAdd) x = hn::Add(hn::LoadU(F32(), out + i + v), x);
      hn::StoreU(x, F32(), out + i + v);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    VF x = dequantizer(load_bytes(codes + i));
    if constexpr (kAdd) x = hn::Add(hn::LoadU(F32(), out + i), x);
    hn::StoreU(x, F32(), out + i);
  }
  if (i == n) return;
  HWY_ALIGN float few[kLanes];
  hn::Store(dequantizer(load_bytes(codes + i)), F32(), few);
  for (size_t j = 0; i < n; ++i, ++j) out[i] = kAdd ? out[i] + few[j] : few[j];
}

/// A uniform bucket whose top level overflows a float: values are clamped to the largest one.
HWY_NOINLINE void dequantize_huge(const Bucket& bucket, const uint8_t* codes, size_t n, float* out,
                                  bool add) {
  for (size_t i = 0; i < n; ++i) {
    const double exact = bucket.low + static_cast<double>(bucket.scale) * codes[i];
    const float x = static_cast<float>(std::clamp<double>(exact, -FLT_MAX, FLT_MAX));
    out[i] = add ? out[i] + x : x;
  }
}

HWY_INLINE bool overflows(const Bucketed& how, const Bucket& bucket) {
  if (how.scheme != Scheme::uniform) return false;
  const float reach = bucket.scale * static_cast<float>((1 << how.bits) - 1);
  return std::isfinite(bucket.scale) && std::isfinite(bucket.low) &&
         !std::isfinite(bucket.low + reach);
}

template <class Dequantizer>
void decode_with(const Bucketed& how, std::span<const std::byte> payload, TensorView out,
                 bool add) {
  const std::byte* meta = payload.data();
  const uint8_t* packed =
      reinterpret_cast<const uint8_t*>(payload.data()) + how.meta_bytes(out.count);
  const uint8_t* const end = reinterpret_cast<const uint8_t*>(payload.data()) + payload.size();
  HWY_ALIGN float scratch[kTile];
  HWY_ALIGN uint8_t codes[kTile + kPackSlack];
  HWY_ALIGN uint8_t last[kTile + kPackSlack];  // the end of the payload, with room behind it
  Bucket bucket{};
  size_t bucket_end = 0;
  for (size_t tile = 0; tile < out.count; tile += kTile) {
    const size_t n = HWY_MIN(kTile, out.count - tile);
    const size_t packed_bytes = (n * how.bits + 7) / 8;
    const uint8_t* from = packed;
    if (static_cast<size_t>(end - packed) < packed_bytes + kPackSlack) {
      std::memset(last + packed_bytes, 0, kPackSlack);
      std::memcpy(last, packed, packed_bytes);
      from = last;
    }
    unpack(from, n, how.bits, codes);
    packed += packed_bytes;
    float* const numbers = floats_for(out, tile, n, scratch, add);
    for (size_t at = tile; at < tile + n;) {
      if (at == bucket_end) {
        bucket_end = HWY_MIN(at + how.bucket, out.count);
        bucket.scale = kernels::load_meta(meta, how.meta);
        if (how.scheme == Scheme::uniform) bucket.low = kernels::load_meta(meta, how.meta);
      }
      const size_t part = HWY_MIN(bucket_end, tile + n) - at;
      const uint8_t* part_codes = codes + (at - tile);
      float* part_out = numbers + (at - tile);
      if (HWY_UNLIKELY(overflows(how, bucket))) {
        dequantize_huge(bucket, part_codes, part, part_out, add);
      } else if (add) {
        dequantize<true>(Dequantizer(bucket, how.bits), part_codes, part, part_out);
      } else {
        dequantize<false>(Dequantizer(bucket, how.bits), part_codes, part, part_out);
      }
      at += part;
    }
    finish_floats(out, tile, n, numbers);
  }
}

void bucketed_decode(const Bucketed& how, std::span<const std::byte> payload, TensorView out,
                     bool add) {
  switch (how.scheme) {
    case Scheme::uniform:
      return decode_with<UniformDequantizer>(how, payload, out, add);
    case Scheme::exponential:
      return decode_with<ExponentialDequantizer>(how, payload, out, add);
    case Scheme::sign:
      return decode_with<SignDequantizer>(how, payload, out, add);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(bucketed_decode);

void decode_bucketed(const Bucketed& how, std::span<const std::byte> payload, TensorView out,
                     Into into) noexcept {
  HWY_DYNAMIC_DISPATCH(bucketed_decode)(how, payload, out, into == Into::add);
}

}  // namespace gradwire::kernels
#endif
