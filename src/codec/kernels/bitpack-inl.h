// Codes of 1 to 8 bits, packed little-endian: of each 8 consecutive codes, code j takes bits
// [j*bits, (j+1)*bits) of a word of `bits` bytes.
#if defined(GRADWIRE_CODEC_KERNELS_BITPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_KERNELS_BITPACK_INL_H_
#undef GRADWIRE_CODEC_KERNELS_BITPACK_INL_H_
#else
#define GRADWIRE_CODEC_KERNELS_BITPACK_INL_H_
#endif

#include "codec/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

/// What pack and unpack may touch behind the codes or the packed bytes they are given.
inline constexpr size_t kPackSlack = 32;

inline constexpr size_t kPackStep = hn::MaxLanes(Bytes());  // codes per vector

using U16x = hn::Repartition<uint16_t, Bytes>;
using U32x = hn::Repartition<uint32_t, Bytes>;
using U64x = hn::Repartition<uint64_t, Bytes>;

/// Byte positions that close the gaps between two words of `bits` bytes, and that open them again.
struct PackTables {
  HWY_ALIGN uint8_t close[16];
  HWY_ALIGN uint8_t open[16];
};

HWY_INLINE PackTables pack_tables(int bits) {
  PackTables tables;
  for (int i = 0; i < 16; ++i) {
    tables.close[i] = static_cast<uint8_t>(i < bits ? i : i < 2 * bits ? 8 + i - bits : 0x80);
    const int in_word = i % 8;
    tables.open[i] = static_cast<uint8_t>(in_word < bits ? (i / 8) * bits + in_word : 0x80);
  }
  return tables;
}

/// Packs `n` codes; the codes behind them, up to a multiple of 8, must be 0. Writes up to
/// kPackSlack bytes more and reads up to kPackSlack codes more.
HWY_INLINE void pack(const uint8_t* codes, size_t n, int bits, uint8_t* to) {
  const PackTables tables = pack_tables(bits);
  const auto close = hn::LoadDup128(Bytes(), tables.close);
  const hn::Half<Bytes> half;
  for (size_t i = 0; i < n; i += kPackStep) {
    const auto pairs = hn::BitCast(U16x(), hn::LoadU(Bytes(), codes + i));
    const auto two = hn::Or(hn::And(pairs, hn::Set(U16x(), 0xff)),
                            hn::ShiftLeftSame(hn::ShiftRight<8>(pairs), bits));
    const auto quads = hn::BitCast(U32x(), two);
    const auto four = hn::Or(hn::And(quads, hn::Set(U32x(), 0xffff)),
                             hn::ShiftLeftSame(hn::ShiftRight<16>(quads), 2 * bits));
    const auto octets = hn::BitCast(U64x(), four);
    const auto eight = hn::Or(hn::And(octets, hn::Set(U64x(), 0xffffffff)),
                              hn::ShiftLeftSame(hn::ShiftRight<32>(octets), 4 * bits));
    const auto closed = hn::TableLookupBytesOr0(hn::BitCast(Bytes(), eight), close);
    if constexpr (kPackStep == 32) {
      hn::StoreU(hn::LowerHalf(half, closed), half, to);
      hn::StoreU(hn::UpperHalf(half, closed), half, to + 2 * bits);
    } else {
      hn::StoreU(closed, Bytes(), to);
    }
    to += kPackStep / 8 * static_cast<size_t>(bits);
  }
}

/// Unpacks `n` codes. Reads up to kPackSlack bytes more and writes up to kPackSlack codes more.
HWY_INLINE void unpack(const uint8_t* from, size_t n, int bits, uint8_t* codes) {
  const PackTables tables = pack_tables(bits);
  const auto open = hn::LoadDup128(Bytes(), tables.open);
  const hn::Half<Bytes> half;
  const auto mask4 = hn::Set(U64x(), (uint64_t{1} << (4 * bits)) - 1);
  const auto mask2 = hn::Set(U32x(), (uint32_t{1} << (2 * bits)) - 1);
  const auto mask1 = hn::Set(U16x(), static_cast<uint16_t>((1u << bits) - 1));
  for (size_t i = 0; i < n; i += kPackStep) {
    hn::Vec<Bytes> closed;
    if constexpr (kPackStep == 32) {
      closed = hn::Combine(Bytes(), hn::LoadU(half, from + 2 * bits), hn::LoadU(half, from));
    } else {
      closed = hn::LoadU(Bytes(), from);
    }
    const auto eight = hn::BitCast(U64x(), hn::TableLookupBytesOr0(closed, open));
    const auto four = hn::BitCast(
        U32x(),
        hn::Or(hn::And(eight, mask4), hn::ShiftLeft<32>(hn::ShiftRightSame(eight, 4 * bits))));
    const auto two = hn::BitCast(
        U16x(),
        hn::Or(hn::And(four, mask2), hn::ShiftLeft<16>(hn::ShiftRightSame(four, 2 * bits))));
    const auto one = hn::Or(hn::And(two, mask1), hn::ShiftLeft<8>(hn::ShiftRightSame(two, bits)));
    hn::StoreU(hn::BitCast(Bytes(), one), Bytes(), codes + i);
    from += kPackStep / 8 * static_cast<size_t>(bits);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
