// What the kernels of codecs share beyond vectors of numbers, compiled once per instruction set (no
// include guard but Highway's own toggle: Highway includes the kernel files once per target).
#if defined(GRADWIRE_CODEC_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_KERNELS_VECTOR_INL_H_
#undef GRADWIRE_CODEC_KERNELS_VECTOR_INL_H_
#else
#define GRADWIRE_CODEC_KERNELS_VECTOR_INL_H_
#endif

#include "base/random_stream.h"
#include "tensor/dtype_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

/// Elements that one step of most loops takes: one group of the random generator.
inline constexpr size_t kGroup = kGroupElements;
inline constexpr size_t kGroupVectors = kGroup / kLanes;

// ---------------------------------------------------------------------------------------------
// Randomness, base/random_stream.h in vectors.

/// 0, 1, 2, …; Highway's own Iota goes through memory and stalls.
HWY_INLINE VU lane_numbers() {
  HWY_ALIGN static constexpr uint32_t kNumbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  return hn::Load(U32(), kNumbers);
}

/// A hash before its last step, of members of the Weyl sequence.
HWY_INLINE VU hash_product(VU weyl, VU odd) {
  const VU mixed = hn::Xor(weyl, hn::ShiftRight<16>(weyl));
  return hn::Mul(mixed, hn::Add(mixed, odd));
}

/// The bits that a hash has for an element of a group's first or second half.
HWY_INLINE VI second_half(VU product) { return hn::BitCast(I32(), hn::ShiftRight<16>(product)); }
HWY_INLINE VI first_half(VU product) {
  const VU hash = hn::Xor(product, hn::ShiftRight<16>(product));
  return hn::BitCast(I32(), hn::And(hash, hn::Set(U32(), 0xffff)));
}

/// Draws the random bits of consecutive groups.
struct RandomGroups {
  VU weyl;  // of the next kLanes counters
  VU odd;

  HWY_INLINE RandomGroups(StreamKey key, uint32_t first_group)
      : weyl(hn::Add(hn::Mul(lane_numbers(), hn::Set(U32(), kWeylStep)),
                     hn::Set(U32(), first_group * 16 * kWeylStep + key.start))),
        odd(hn::Set(U32(), key.odd)) {}

  /// Those of the next 32 elements, as kGroupVectors vectors of 0..65535.
  HWY_INLINE void draw(VI* bits) {
    constexpr size_t kHalf = kGroupVectors / 2;
    for (size_t v = 0; v < kHalf; ++v) {
      const VU product = hash_product(weyl, odd);
      bits[v] = first_half(product);
      bits[v + kHalf] = second_half(product);
      weyl = hn::Add(weyl, hn::Set(U32(), static_cast<uint32_t>(kLanes) * kWeylStep));
    }
  }
};

/// The random bits of kLanes consecutive elements from any one on.
HWY_INLINE VI draw_vector(StreamKey key, uint64_t element) {
  const U32 du;
  const uint32_t group = static_cast<uint32_t>(element / kGroup);
  const VU place = hn::Add(lane_numbers(), hn::Set(du, static_cast<uint32_t>(element % kGroup)));
  const VU groups = hn::Add(hn::ShiftRight<5>(place), hn::Set(du, group));
  const VU counters = hn::Add(hn::ShiftLeft<4>(groups), hn::And(place, hn::Set(du, 15)));
  const VU product =
      hash_product(hn::Add(hn::Mul(counters, hn::Set(du, kWeylStep)), hn::Set(du, key.start)),
                   hn::Set(du, key.odd));
  return hn::IfThenElse(hn::RebindMask(I32(), hn::TestBit(place, hn::Set(du, 16))),
                        second_half(product), first_half(product));
}

// ---------------------------------------------------------------------------------------------
// Sums, in an order that no vector width changes: 16 lanes, then halves onto halves.

inline constexpr size_t kSumVectors = 16 / kLanes;

template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> fold_to_four(D, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) == 8) {
    const hn::Half<D> half;
    return hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
  } else {
    return x;
  }
}

HWY_INLINE float sum_lanes(VF* sums) {
  for (size_t width = kSumVectors / 2; width > 0; width /= 2) {
    for (size_t v = 0; v < width; ++v) sums[v] = hn::Add(sums[v], sums[v + width]);
  }
  const auto four = fold_to_four(F32(), sums[0]);
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
}

// ---------------------------------------------------------------------------------------------

/// x rounded to the nearest integer, ties to even, for |x| < 2^31; INT32_MIN for NaN. (Highway's
/// own also handles what is out of range, at twice the cost.)
HWY_INLINE VI nearest_int(VF x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return VI{_mm256_cvtps_epi32(x.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return VI{_mm_cvtps_epi32(x.raw)};
#else
  const auto nan = hn::RebindMask(I32(), hn::IsNaN(x));
  return hn::IfThenElse(nan, hn::Set(I32(), INT32_MIN), hn::NearestInt(x));
#endif
}

/// Demoting four vectors of integers to bytes, pair by pair, and joining the pairs' bytes leaves
/// them mixed within 128-bit blocks; this puts them in order.
HWY_INLINE hn::Vec<Bytes> unmix(hn::Vec<Bytes> mixed) {
  alignas(16) static constexpr uint8_t kSplit[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                     1, 3, 5, 7, 9, 11, 13, 15};
  const auto split = hn::TableLookupBytes(mixed, hn::LoadDup128(Bytes(), kSplit));
  if constexpr (kLanes == 4) return split;
  // Blocks hold a0 b0 c0 d0 | a1 b1 c1 d1, four bytes each.
  HWY_ALIGN static constexpr int32_t kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return hn::BitCast(
      Bytes(), hn::TableLookupLanes(hn::BitCast(U32(), split), hn::SetTableIndices(U32(), kOrder)));
}

/// Stores the low bytes of 4 * kLanes integers 0..255 in order.
HWY_INLINE void store_bytes(VI a, VI b, VI c, VI d, uint8_t* to) {
  const hn::Repartition<int16_t, I32> di16;
  const auto low = hn::ReorderDemote2To(di16, a, b);
  const auto high = hn::ReorderDemote2To(di16, c, d);
  hn::StoreU(unmix(hn::BitCast(Bytes(), hn::Or(low, hn::ShiftLeft<8>(high)))), Bytes(), to);
}

/// kLanes bytes as integers.
HWY_INLINE VI load_bytes(const uint8_t* from) {
  return hn::PromoteTo(I32(), hn::LoadU(U8(), from));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
