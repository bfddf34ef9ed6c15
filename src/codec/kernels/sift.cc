#include "codec/kernels/sift.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/sift.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
using kernels::FloorCounts;
using kernels::Floors;
using kernels::KeySummary;
using kernels::kFloors;
using kernels::kLargestFiniteKey;
using kernels::kSiftElements;
using kernels::Side;
using kernels::Sifted;

/// kernels::key_of in vectors. Keys are below 2^31: signed comparisons order them.
template <Side kSide>
HWY_INLINE VI keys_of(VF x) {
  const I32 di;
  const VI bits = hn::BitCast(di, x);
  const VI magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  if constexpr (kSide == Side::both) return magnitude;
  const VI turned = kSide == Side::positive ? bits : hn::Xor(bits, hn::Set(di, INT32_MIN));
  const auto not_finite = hn::Gt(magnitude, hn::Set(di, static_cast<int32_t>(kLargestFiniteKey)));
  return hn::IfThenElse(not_finite, magnitude, hn::Max(turned, hn::Zero(di)));
}

/// x as floats in whole groups of 32, zeros behind the last. `scratch` has room for kSiftElements.
HWY_INLINE const float* whole_groups(ConstTensorView x, float* scratch) {
  const float* const floats = as_floats(x, 0, x.count, scratch);
  if (HWY_LIKELY(x.count % kGroup == 0)) return floats;
  if (floats != scratch) std::memcpy(scratch, floats, x.count * sizeof(float));
  std::fill(scratch + x.count, scratch + HWY_MIN(x.count + kGroup, kSiftElements), 0.0f);
  return scratch;
}

/// Appends the places of a mask's bits, from `first` on.
template <typename Mask>
HWY_INLINE uint16_t* append_places(Mask mask, size_t first, uint16_t* to) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(I32(), mask, bytes);
  for (unsigned bits = bytes[0]; bits != 0; bits &= bits - 1) {
    *to++ = static_cast<uint16_t>(first + static_cast<unsigned>(std::countr_zero(bits)));
  }
  return to;
}

template <Side kSide>
void sift_side(ConstTensorView x, uint32_t floor, Sifted& found) {
  HWY_ALIGN float scratch[kSiftElements];
  const float* const floats = whole_groups(x, scratch);
  const VI limit = hn::Set(I32(), static_cast<int32_t>(floor));
  uint16_t* to = found.at;
  for (size_t i = 0; i < x.count; i += kGroup) {
    VI keys[kGroupVectors];
    VI most = hn::Zero(I32());
    for (size_t v = 0; v < kGroupVectors; ++v) {
      keys[v] = keys_of<kSide>(hn::LoadU(F32(), floats + i + v * kLanes));
      most = hn::Max(most, keys[v]);
    }
    if (HWY_LIKELY(hn::AllFalse(I32(), hn::Gt(most, limit)))) continue;
    for (size_t v = 0; v < kGroupVectors; ++v) {
      to = append_places(hn::Gt(keys[v], limit), i + v * kLanes, to);
    }
  }
  found.count = static_cast<size_t>(to - found.at);
  for (size_t i = 0; i < found.count; ++i) found.values[i] = floats[found.at[i]];
}

template <Side kSide>
void count_above_side(ConstTensorView x, const Floors& floors, FloorCounts& counts) {
  HWY_ALIGN float scratch[kSiftElements];
  const float* const floats = whole_groups(x, scratch);
  const I32 di;
  VI limits[kFloors];
  VI sums[kFloors];
  for (size_t f = 0; f < kFloors; ++f) {
    limits[f] = hn::Set(di, static_cast<int32_t>(floors[f]));
    sums[f] = hn::Zero(di);
  }
  for (size_t i = 0; i < x.count; i += kLanes) {
    const VI keys = keys_of<kSide>(hn::LoadU(F32(), floats + i));
    for (size_t f = 0; f < kFloors; ++f) {
      sums[f] = hn::Sub(sums[f], hn::VecFromMask(di, hn::Gt(keys, limits[f])));
    }
  }
  for (size_t f = 0; f < kFloors; ++f) {
    HWY_ALIGN int32_t lanes[kLanes];
    hn::Store(sums[f], di, lanes);
    for (const int32_t lane : lanes) counts[f] += static_cast<uint32_t>(lane);
  }
}

template <Side kSide>
void summarize_side(ConstTensorView x, KeySummary& summary) {
  HWY_ALIGN float scratch[kSiftElements];
  const float* const floats = whole_groups(x, scratch);
  const I32 di;
  VF sums[kSumVectors];
  VI most = hn::Zero(di);
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(F32());
  for (size_t i = 0; i < x.count; i += 16) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      const VI keys = keys_of<kSide>(hn::LoadU(F32(), floats + i + v * kLanes));
      const auto not_finite = hn::Gt(keys, hn::Set(di, static_cast<int32_t>(kLargestFiniteKey)));
      const VI counted = hn::IfThenZeroElse(not_finite, keys);
      sums[v] = hn::Add(sums[v], hn::BitCast(F32(), counted));
      most = hn::Max(most, counted);
    }
  }
  summary.sum += sum_lanes(sums);
  HWY_ALIGN int32_t lanes[kLanes];
  hn::Store(most, di, lanes);
  for (const int32_t lane : lanes) {
    summary.largest = HWY_MAX(summary.largest, static_cast<uint32_t>(lane));
  }
}

void sift_any(ConstTensorView x, Side side, uint32_t floor, Sifted& found) {
  if (side == Side::both) return sift_side<Side::both>(x, floor, found);
  if (side == Side::positive) return sift_side<Side::positive>(x, floor, found);
  return sift_side<Side::negative>(x, floor, found);
}

void count_above_any(ConstTensorView x, Side side, const Floors& floors, FloorCounts& counts) {
  if (side == Side::both) return count_above_side<Side::both>(x, floors, counts);
  if (side == Side::positive) return count_above_side<Side::positive>(x, floors, counts);
  return count_above_side<Side::negative>(x, floors, counts);
}

void summarize_any(ConstTensorView x, Side side, KeySummary& summary) {
  if (side == Side::both) return summarize_side<Side::both>(x, summary);
  if (side == Side::positive) return summarize_side<Side::positive>(x, summary);
  return summarize_side<Side::negative>(x, summary);
}

size_t pick_any(uint64_t folded, uint64_t first_element, size_t count, uint32_t limit,
                uint16_t* at) {
  RandomGroups groups(stream_key(folded, first_element),
                      static_cast<uint32_t>(first_element / kGroup));
  const VI below = hn::Set(I32(), static_cast<int32_t>(limit));
  uint16_t* to = at;
  for (size_t i = 0; i < count; i += kGroup) {
    VI bits[kGroupVectors];
    groups.draw(bits);
    VI least = bits[0];
    for (size_t v = 1; v < kGroupVectors; ++v) least = hn::Min(least, bits[v]);
    if (HWY_LIKELY(hn::AllFalse(I32(), hn::Lt(least, below)))) continue;
    for (size_t v = 0; v < kGroupVectors; ++v) {
      to = append_places(hn::Lt(bits[v], below), i + v * kLanes, to);
    }
  }
  while (to > at && to[-1] >= count) --to;  // of a last group that is short
  return static_cast<size_t>(to - at);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(sift_any);
HWY_EXPORT(count_above_any);
HWY_EXPORT(summarize_any);
HWY_EXPORT(pick_any);

void sift(ConstTensorView x, Side side, std::uint32_t floor, Sifted& found) noexcept {
  HWY_DYNAMIC_DISPATCH(sift_any)(x, side, floor, found);
}

void count_above(ConstTensorView x, Side side, const Floors& floors, FloorCounts& counts) noexcept {
  HWY_DYNAMIC_DISPATCH(count_above_any)(x, side, floors, counts);
}

void summarize(ConstTensorView x, Side side, KeySummary& summary) noexcept {
  HWY_DYNAMIC_DISPATCH(summarize_any)(x, side, summary);
}

std::size_t pick(std::uint64_t folded, std::uint64_t first_element, std::size_t count,
                 std::uint32_t limit, std::uint16_t* at) noexcept {
  return HWY_DYNAMIC_DISPATCH(pick_any)(folded, first_element, count, limit, at);
}

}  // namespace gradwire::kernels
#endif
