// The entropy coder's steps on vectors; codec/rans.h says what they do.
#if defined(GRADWIRE_CODEC_KERNELS_RANS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_KERNELS_RANS_INL_H_
#undef GRADWIRE_CODEC_KERNELS_RANS_INL_H_
#else
#define GRADWIRE_CODEC_KERNELS_RANS_INL_H_
#endif

#include <bit>

#include "codec/kernels/lane_tables.h"
#include "codec/kernels/vector-inl.h"
#include "codec/rans.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

using I16x = hn::Repartition<int16_t, F32>;
using U16x2 = hn::Repartition<uint16_t, F32>;
using VB = hn::Vec<Bytes>;
using VW = hn::Vec<U16x2>;

// Four vectors of states are one unit: as many states as a vector has bytes.
inline constexpr size_t kUnitStates = 4 * kLanes;
inline constexpr size_t kUnits = kRansStates / kUnitStates;
static_assert(kUnitStates == hn::MaxLanes(Bytes()));

/// Which lanes of a mask are set, as bits.
template <class M>
HWY_INLINE uint32_t mask_bits(M mask) {
#if HWY_TARGET == HWY_AVX2
  return static_cast<uint32_t>(
      _mm256_movemask_ps(hn::BitCast(F32(), hn::VecFromMask(I32(), mask)).raw));
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return static_cast<uint32_t>(
      _mm_movemask_ps(hn::BitCast(F32(), hn::VecFromMask(I32(), mask)).raw));
#else
  uint8_t bits[8] = {};
  hn::StoreMaskBits(I32(), mask, bits);
  return bits[0];
#endif
}

/// x without its fraction; 0 <= x < 2^31.
HWY_INLINE VI truncate_int(VF x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return VI{_mm256_cvttps_epi32(x.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return VI{_mm_cvttps_epi32(x.raw)};
#else
  return hn::ConvertTo(I32(), x);
#endif
}

// Bytes of a unit stand "mixed" while they are looked up: byte 2i belongs to 16-bit lane i of the
// vectors (a, b), byte 2i + 1 to lane i of (c, d), lanes being where packing two 32-bit vectors
// puts them. No step then crosses lanes but the last.

HWY_INLINE VW even_bytes(VB low, VB high) {  // 16-bit lanes of (a, b) from their low and high bytes
  const U16x2 d;
  return hn::Or(hn::And(hn::BitCast(d, low), hn::Set(d, 0xff)),
                hn::ShiftLeft<8>(hn::BitCast(d, high)));
}

HWY_INLINE VW odd_bytes(VB low, VB high) {  // 16-bit lanes of (c, d)
  const U16x2 d;
  return hn::Or(hn::ShiftRight<8>(hn::BitCast(d, low)),
                hn::And(hn::BitCast(d, high), hn::Set(d, 0xff00)));
}

/// The 32-bit vectors a, b, c, d from the 16-bit lanes of (a, b) and (c, d).
HWY_INLINE void spread(VW ab, VW cd, VI* to) {
  const U16x2 d;
  const VW zero = hn::Zero(d);
  to[0] = hn::BitCast(I32(), hn::InterleaveLower(d, ab, zero));
  to[1] = hn::BitCast(I32(), hn::InterleaveUpper(d, ab, zero));
  to[2] = hn::BitCast(I32(), hn::InterleaveLower(d, cd, zero));
  to[3] = hn::BitCast(I32(), hn::InterleaveUpper(d, cd, zero));
}

HWY_INLINE VB mix(VB ordered) {
  alignas(16) static constexpr uint8_t kMerge[16] = {0, 8,  1, 9,  2, 10, 3, 11,
                                                     4, 12, 5, 13, 6, 14, 7, 15};
  VB split = ordered;
  if constexpr (kLanes == 8) {
    HWY_ALIGN static constexpr int32_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    split = hn::BitCast(Bytes(), hn::TableLookupLanes(hn::BitCast(U32(), ordered),
                                                      hn::SetTableIndices(U32(), kOrder)));
  }
  return hn::TableLookupBytes(split, hn::LoadDup128(Bytes(), kMerge));
}

HWY_INLINE VB look_up(const uint8_t* table, VB index) {
  return hn::TableLookupBytes(hn::LoadDup128(Bytes(), table), index);
}

// ---------------------------------------------------------------------------------------------

/// Takes one symbol out of each state of a unit; returns the symbols in the order of the states.
HWY_INLINE VB decode_unit(const RansTable& table, VI* x) {
  const I16x di16;
  const U16x2 dw;
  const Bytes db;
  const VI slots = hn::Set(I32(), kRansTotal - 1);
  const VW ab =
      hn::BitCast(dw, hn::ReorderDemote2To(di16, hn::And(x[0], slots), hn::And(x[1], slots)));
  const VW cd =
      hn::BitCast(dw, hn::ReorderDemote2To(di16, hn::And(x[2], slots), hn::And(x[3], slots)));
  const VW ab_position = hn::And(ab, hn::Set(dw, 0xff));
  const VW cd_position = hn::And(cd, hn::Set(dw, 0xff));
  const VB position = hn::BitCast(db, hn::Or(ab_position, hn::ShiftLeft<8>(cd)));
  const VB bin = hn::BitCast(db, hn::Or(hn::ShiftRight<8>(ab), hn::And(cd, hn::Set(dw, 0xff00))));

  const VB divider = look_up(table.divider, bin);
  const auto aliased = hn::Eq(hn::Max(position, divider), position);
  const VB symbol = hn::IfThenElse(aliased, look_up(table.alias, bin), bin);
  const VB bias_low = hn::IfThenElseZero(aliased, look_up(table.bias[0], bin));
  const VB bias_high = hn::IfThenElseZero(aliased, look_up(table.bias[1], bin));
  const VB frequency_low = look_up(table.frequency[0], symbol);
  const VB frequency_high = look_up(table.frequency[1], symbol);

  VI rank[4];
  VI frequency[4];
  spread(hn::Add(ab_position, even_bytes(bias_low, bias_high)),
         hn::Add(cd_position, odd_bytes(bias_low, bias_high)), rank);
  spread(even_bytes(frequency_low, frequency_high), odd_bytes(frequency_low, frequency_high),
         frequency);
  for (size_t v = 0; v < 4; ++v) {
    x[v] = hn::Add(hn::Mul(frequency[v], hn::ShiftRight<12>(x[v])), rank[v]);
  }
  return unmix(symbol);
}

/// Refills the states that became small, in their order, from the words at `at`. Reads up to 16
/// bytes.
HWY_INLINE void refill(VI& x, const std::byte*& at) {
  const auto small = hn::Lt(x, hn::Set(I32(), kRansLow));
  const uint32_t bits = mask_bits(small);
  const VI words = hn::PromoteTo(I32(), hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(at)));
  const VI from = hn::PromoteTo(I32(), hn::LoadU(U8(), kExpand[bits]));
  const VI placed = hn::TableLookupLanes(words, hn::IndicesFromVec(I32(), from));
  x = hn::IfThenElse(small, hn::Or(hn::ShiftLeft<16>(x), placed), x);
  at += 2 * static_cast<size_t>(std::popcount(bits));
}

/// A decoder whose states are in registers. Near the end it reads from a padded copy.
class VectorReader {
 public:
  HWY_INLINE explicit VectorReader(RansReader& reader) : reader_(reader), at_(reader.at) {
    safe_ = reader.end - reader.at >= kMargin ? reader.end - kMargin : nullptr;
    for (size_t v = 0; v < kStateVectors; ++v) {
      states_[v] = hn::LoadU(I32(), reinterpret_cast<const int32_t*>(&reader.states[v * kLanes]));
    }
  }

  /// One group; false when the words ran out before.
  HWY_INLINE bool decode(const RansTable& table, uint8_t* symbols) {
    for (size_t u = 0; u < kUnits; ++u) {
      hn::StoreU(decode_unit(table, states_ + 4 * u), Bytes(), symbols + u * kUnitStates);
    }
    if (HWY_LIKELY(safe_ != nullptr && at_ <= safe_)) {
      for (size_t v = 0; v < kStateVectors; ++v) refill(states_[v], at_);
      return true;
    }
    return refill_carefully();
  }

  HWY_INLINE void finish() {
    reader_.at = at_;
    for (size_t v = 0; v < kStateVectors; ++v) {
      hn::StoreU(states_[v], I32(), reinterpret_cast<int32_t*>(&reader_.states[v * kLanes]));
    }
  }

 private:
  static constexpr size_t kStateVectors = kRansStates / kLanes;
  static constexpr ptrdiff_t kMargin = 2 * kRansStates + 16;

  HWY_NOINLINE bool refill_carefully() {
    std::byte padded[kMargin] = {};
    const ptrdiff_t left = reader_.end - at_;
    if (left > 0) std::memcpy(padded, at_, static_cast<size_t>(left < kMargin ? left : kMargin));
    const std::byte* at = padded;
    for (size_t v = 0; v < kStateVectors; ++v) refill(states_[v], at);
    if (at - padded > left) return false;
    at_ += at - padded;
    return true;
  }

  RansReader& reader_;
  const std::byte* at_;
  const std::byte* safe_;  // up to here a group may be refilled without looking
  VI states_[kStateVectors];
};

// ---------------------------------------------------------------------------------------------

/// The encoder's view of one unit's symbols.
struct UnitNumbers {
  VI frequency[4];
  VI start[4];
  VF reciprocal[4];
};

HWY_INLINE void look_up_unit(const RansTable& table, const uint8_t* symbols, UnitNumbers& numbers) {
  const U16x2 d;
  const VB symbol = mix(hn::LoadU(Bytes(), symbols));
  const VB f0 = look_up(table.frequency[0], symbol);
  const VB f1 = look_up(table.frequency[1], symbol);
  spread(even_bytes(f0, f1), odd_bytes(f0, f1), numbers.frequency);
  const VB s0 = look_up(table.start[0], symbol);
  const VB s1 = look_up(table.start[1], symbol);
  spread(even_bytes(s0, s1), odd_bytes(s0, s1), numbers.start);
  const VB r0 = look_up(table.reciprocal[0], symbol);
  const VB r1 = look_up(table.reciprocal[1], symbol);
  const VB r2 = look_up(table.reciprocal[2], symbol);
  const VB r3 = look_up(table.reciprocal[3], symbol);
  const VW ab_low = even_bytes(r0, r1), ab_high = even_bytes(r2, r3);
  const VW cd_low = odd_bytes(r0, r1), cd_high = odd_bytes(r2, r3);
  numbers.reciprocal[0] = hn::BitCast(F32(), hn::InterleaveLower(d, ab_low, ab_high));
  numbers.reciprocal[1] = hn::BitCast(F32(), hn::InterleaveUpper(d, ab_low, ab_high));
  numbers.reciprocal[2] = hn::BitCast(F32(), hn::InterleaveLower(d, cd_low, cd_high));
  numbers.reciprocal[3] = hn::BitCast(F32(), hn::InterleaveUpper(d, cd_low, cd_high));
}

/// Puts the low words of the set lanes before `end`, in order, and moves it there.
HWY_INLINE void emit(VI x, uint32_t bits, uint16_t*& end) {
  const hn::Rebind<uint16_t, I32> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const auto words = hn::BitCast(d8, hn::TruncateTo(d16, hn::BitCast(U32(), x)));
  const auto order = hn::LoadU(d8, kLanes == 8 ? kCompress8[bits] : kCompress4[bits]);
  hn::StoreU(hn::BitCast(d16, hn::TableLookupBytes(words, order)), d16, end - kLanes);
  end -= std::popcount(bits);
}

HWY_INLINE VI encode_vector(const RansTable& table, const UnitNumbers& numbers, size_t v, VI x,
                            uint16_t*& end) {
  const VI frequency = numbers.frequency[v];
  const VI below = hn::Sub(frequency, hn::Set(I32(), 1));
  const auto full = hn::Gt(hn::ShiftRight<19>(x), below);
  emit(x, mask_bits(full), end);
  x = hn::IfThenElse(full, hn::ShiftRight<16>(x), x);
  VI quotient = truncate_int(hn::Mul(hn::ConvertTo(F32(), x), numbers.reciprocal[v]));
  VI rank = hn::Sub(x, hn::Mul(quotient, frequency));
  const VI short_by_one = hn::VecFromMask(I32(), hn::Gt(rank, below));
  quotient = hn::Sub(quotient, short_by_one);
  rank = hn::Sub(rank, hn::And(short_by_one, frequency));
  const VI offset = hn::ShiftLeft<1>(hn::Add(numbers.start[v], rank));
  const VI slot = hn::GatherOffset(I32(), reinterpret_cast<const int32_t*>(table.slot), offset);
  return hn::Or(hn::ShiftLeft<12>(quotient), hn::And(slot, hn::Set(I32(), 0xffff)));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
