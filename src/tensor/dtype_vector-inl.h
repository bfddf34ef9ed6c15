// Numbers of every dtype in vectors of floats, compiled once per instruction set (no include guard
// but Highway's own toggle: Highway includes the kernel files once per target).
//
// Vectors are at most eight floats wide, whatever the CPU has: groups of 32 elements then cover
// every target, and sums run in the same order on all of them.
#if defined(GRADWIRE_TENSOR_DTYPE_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_TENSOR_DTYPE_VECTOR_INL_H_
#undef GRADWIRE_TENSOR_DTYPE_VECTOR_INL_H_
#else
#define GRADWIRE_TENSOR_DTYPE_VECTOR_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gradwire/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 8>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;  // as many lanes as F32
using U8 = hn::Rebind<uint8_t, F32>;
using Bytes = hn::Repartition<uint8_t, F32>;  // as many bytes as F32
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;

inline constexpr size_t kLanes = hn::MaxLanes(F32());
static_assert(kLanes == 4 || kLanes == 8);

/// Asks memory for what lies 2 KiB behind `at`, which is what arrives in time.
HWY_INLINE void prefetch(const void* at) {
  hwy::Prefetch(reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(at) + 2048));
}

// ---------------------------------------------------------------------------------------------
// Half precision. Highway's own conversions round differently on targets without the instructions,
// so those are written out here; results equal the hardware's bit for bit, NaN payloads included.

#undef GRADWIRE_HARDWARE_F16
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
#define GRADWIRE_HARDWARE_F16 1
#else
#define GRADWIRE_HARDWARE_F16 0
#endif

HWY_INLINE VF from_f16(const uint16_t* from) {
#if GRADWIRE_HARDWARE_F16
  const hn::Rebind<hwy::float16_t, F32> df16;
  return hn::PromoteTo(F32(), hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  const U32 du;
  const VU h = hn::PromoteTo(du, hn::LoadU(U16(), from));
  const VU magnitude = hn::And(h, hn::Set(du, 0x7fff));
  const VU sign = hn::ShiftLeft<16>(hn::And(h, hn::Set(du, 0x8000)));
  const VU rebias = hn::Set(du, 112u << 23);
  VU bits = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto special = hn::Gt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x7bff));
  const auto nan = hn::Gt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x7c00));
  bits = hn::Add(bits, hn::IfThenElseZero(hn::RebindMask(du, special), rebias));
  bits = hn::Or(bits, hn::IfThenElseZero(hn::RebindMask(du, nan), hn::Set(du, 0x400000)));
  const VF small = hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), magnitude)),
                           hn::Set(F32(), 5.9604644775390625e-08f));  // 2^-24
  const auto denormal = hn::Lt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x400));
  bits = hn::IfThenElse(hn::RebindMask(du, denormal), hn::BitCast(du, small), bits);
  return hn::BitCast(F32(), hn::Or(bits, sign));
#endif
}

HWY_INLINE void to_f16(VF x, uint16_t* to) {
#if GRADWIRE_HARDWARE_F16
  const hn::Rebind<hwy::float16_t, F32> df16;
  hn::StoreU(hn::DemoteTo(df16, x), df16, reinterpret_cast<hwy::float16_t*>(to));
#else
  const U32 du;
  const I32 di;
  const VU bits = hn::BitCast(du, x);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
  const VU sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000)));
  const VI m = hn::BitCast(di, magnitude);
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  VU half = hn::ShiftRight<13>(
      hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xfff))), hn::Set(du, 112u << 23)));
  // Denormals: adding 0.5 shifts the mantissa to units of 2^-24 and rounds to nearest even.
  const VF shifted = hn::Add(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0.5f));
  const VU denormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000));
  half = hn::IfThenElse(hn::RebindMask(du, hn::Lt(m, hn::Set(di, 0x38800000))), denormal, half);
  half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x477fefff))), hn::Set(du, 0x7c00),
                        half);
  const VU nan =
      hn::Or(hn::Set(du, 0x7e00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ff)));
  half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x7f800000))), nan, half);
  hn::StoreU(hn::TruncateTo(U16(), hn::Or(half, sign)), U16(), to);
#endif
}

HWY_INLINE VF from_bf16(const uint16_t* from) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), from))));
}

/// The bf16 nearest to x, ties to even, sign-extended; NaN stays NaN.
HWY_INLINE VI round_bf16(VF x) {
  const U32 du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const VU quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto nan = hn::RebindMask(du, hn::IsNaN(x));
  return hn::ShiftRight<16>(hn::BitCast(I32(), hn::IfThenElse(nan, quiet, rounded)));
}

HWY_INLINE void to_bf16(VF x, uint16_t* to) {
  hn::StoreU(hn::TruncateTo(U16(), hn::BitCast(U32(), round_bf16(x))), U16(), to);
}

/// Two vectors at once, in half the instructions.
HWY_INLINE void to_bf16(VF first, VF second, uint16_t* to) {
  const hn::Repartition<int16_t, I32> d16;
  auto packed = hn::ReorderDemote2To(d16, round_bf16(first), round_bf16(second));
  if constexpr (kLanes == 8) {  // blocks hold first0 second0 | first1 second1, 64 bits each
    HWY_ALIGN static constexpr int32_t kOrder[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    packed = hn::BitCast(
        d16, hn::TableLookupLanes(hn::BitCast(U32(), packed), hn::SetTableIndices(U32(), kOrder)));
  }
  hn::StoreU(packed, d16, reinterpret_cast<int16_t*>(to));
}

/// The n < kLanes numbers at `from`, zeros behind them. Reads nothing else.
HWY_INLINE VF load_few(const float* from, size_t n) {
  HWY_ALIGN float padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(float));
  return hn::Load(F32(), padded);
}

template <Dtype kDtype>
HWY_INLINE VF load_vector(const void* from, size_t index) {
  if constexpr (kDtype == Dtype::f32)
    return hn::LoadU(F32(), static_cast<const float*>(from) + index);
  if constexpr (kDtype == Dtype::f16) return from_f16(static_cast<const uint16_t*>(from) + index);
  if constexpr (kDtype == Dtype::bf16) return from_bf16(static_cast<const uint16_t*>(from) + index);
}

template <Dtype kDtype>
HWY_INLINE void store_vector(VF x, void* to, size_t index) {
  if constexpr (kDtype == Dtype::f32) hn::StoreU(x, F32(), static_cast<float*>(to) + index);
  if constexpr (kDtype == Dtype::f16) to_f16(x, static_cast<uint16_t*>(to) + index);
  if constexpr (kDtype == Dtype::bf16) to_bf16(x, static_cast<uint16_t*>(to) + index);
}

template <Dtype kDtype>
HWY_INLINE void widen_as(const void* from, size_t n, float* to) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_vector<kDtype>(from, i), F32(), to + i);
  if (i == n) return;
  HWY_ALIGN uint16_t few[kLanes] = {};
  HWY_ALIGN float wide[kLanes];
  std::memcpy(few, static_cast<const uint16_t*>(from) + i, (n - i) * 2);
  hn::Store(load_vector<kDtype>(few, 0), F32(), wide);
  std::memcpy(to + i, wide, (n - i) * sizeof(float));
}

template <Dtype kDtype>
HWY_INLINE void narrow_as(const float* from, size_t n, void* to) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_vector<kDtype>(hn::LoadU(F32(), from + i), to, i);
  if (i == n) return;
  HWY_ALIGN uint16_t few[kLanes];
  store_vector<kDtype>(load_few(from + i, n - i), few, 0);
  std::memcpy(static_cast<uint16_t*>(to) + i, few, (n - i) * 2);
}

/// The numbers `first`.. of x as floats: where they lie, or widened into `scratch`.
HWY_INLINE const float* as_floats(ConstTensorView x, size_t first, size_t n, float* scratch) {
  const ConstTensorView part = x.slice(first, n);
  if (x.dtype == Dtype::f32) return static_cast<const float*>(part.data);
  if (x.dtype == Dtype::f16) {
    widen_as<Dtype::f16>(part.data, n, scratch);
  } else {
    widen_as<Dtype::bf16>(part.data, n, scratch);
  }
  return scratch;
}

/// Where to put floats so that `finish_floats` brings them to out[first..]: there, or in `scratch`,
/// which is filled with what out holds when `keep` is set.
HWY_INLINE float* floats_for(TensorView out, size_t first, size_t n, float* scratch, bool keep) {
  if (out.dtype == Dtype::f32) return static_cast<float*>(out.data) + first;
  if (keep) as_floats(out, first, n, scratch);
  return scratch;
}

HWY_INLINE void finish_floats(TensorView out, size_t first, size_t n, const float* floats) {
  const TensorView part = out.slice(first, n);
  if (out.dtype == Dtype::f16) narrow_as<Dtype::f16>(floats, n, part.data);
  if (out.dtype == Dtype::bf16) narrow_as<Dtype::bf16>(floats, n, part.data);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
