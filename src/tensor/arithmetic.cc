#include "tensor/arithmetic.h"

#include <array>
#include <bit>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/arithmetic.cc"
#include <hwy/foreach_target.h>

#include "tensor/dtype_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

/// Calls visit(load, store, i) for one vector after the other, then for one number after the other
/// as the first of a vector: loops are written once, and the last numbers take the same operations.
struct Whole {
  static HWY_INLINE VF load(const float* from, size_t i) { return hn::LoadU(F32(), from + i); }
  static HWY_INLINE void store(VF x, float* to, size_t i) { hn::StoreU(x, F32(), to + i); }
};
struct One {
  static HWY_INLINE VF load(const float* from, size_t i) { return hn::Set(F32(), from[i]); }
  static HWY_INLINE void store(VF x, float* to, size_t i) { to[i] = hn::GetLane(x); }
};
template <class Visit>
HWY_INLINE void each_vector(size_t n, Visit visit) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) visit(Whole(), i);
  for (; i < n; ++i) visit(One(), i);
}

/// A NaN has arrived, and must not come again forever.
HWY_INLINE VF finite_or_zero(VF x) {
  return hn::IfThenElseZero(hn::Eq(hn::Sub(x, x), hn::Zero(F32())), x);
}

void scale_floats(float* numbers, size_t n, float factor) {
  const VF by = hn::Set(F32(), factor);
  each_vector(n, [&](auto as, size_t i)
                     HWY_ATTR { as.store(hn::Mul(as.load(numbers, i), by), numbers, i); });
}

/// Eight sums that do not wait for one another, whatever the width of vectors.
double energy_of(const float* numbers, size_t n) {
  const hn::CappedTag<double, 4> dd;
  const hn::Rebind<float, decltype(dd)> df;
  constexpr size_t kDoubles = hn::MaxLanes(dd);
  constexpr size_t kSums = 8;
  using VD = hn::Vec<decltype(dd)>;
  VD sums[kSums / kDoubles];
  for (VD& sum : sums) sum = hn::Zero(dd);
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t k = 0; k < kSums / kDoubles; ++k) {
      const VD x = hn::PromoteTo(dd, hn::LoadU(df, numbers + i + k * kDoubles));
      sums[k] = hn::Add(sums[k], hn::Mul(x, x));
    }
  }
  double all[kSums];
  for (size_t k = 0; k < kSums / kDoubles; ++k) hn::StoreU(sums[k], dd, all + k * kDoubles);
  for (; i < n; ++i) all[i % kSums] += double{numbers[i]} * double{numbers[i]};
  return std::accumulate(all, all + kSums, 0.0);
}

constexpr size_t kEnergyBlock = 256;

/// Of a block, by floats: 32 sums, then halves onto halves, whatever the width of vectors.
HWY_INLINE float block_energy_of(const float* x) {
  constexpr size_t kVectors = 32 / kLanes;
  VF sums[kVectors];
  for (VF& sum : sums) sum = hn::Zero(F32());
  for (size_t i = 0; i < kEnergyBlock; i += 32) {
    for (size_t v = 0; v < kVectors; ++v) {
      const VF part = hn::LoadU(F32(), x + i + v * kLanes);
      sums[v] = hn::Add(sums[v], hn::Mul(part, part));
    }
  }
  for (size_t width = kVectors / 2; width > 0; width /= 2) {
    for (size_t v = 0; v < width; ++v) sums[v] = hn::Add(sums[v], sums[v + width]);
  }
  float left[kLanes];
  hn::StoreU(sums[0], F32(), left);
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) left[i] += left[i + width];
  }
  return left[0];
}

/// What squares to more or less than a float holds is added up in doubles.
double quick_energy_of(const ConstTensorView& numbers) {
  HWY_ALIGN float scratch[kEnergyBlock];
  double total = 0;
  for (size_t first = 0; first < numbers.count; first += kEnergyBlock) {
    const size_t n = HWY_MIN(kEnergyBlock, numbers.count - first);
    const float* const x = as_floats(numbers, first, n, scratch);
    const float quick = n == kEnergyBlock ? block_energy_of(x) : 0;
    const bool holds = quick > 0x1p-80f && quick < 0x1p+120f;
    total += HWY_LIKELY(holds) ? double{quick} : energy_of(x, n);
  }
  return total;
}

/// Looks at exponents only, of a stretch at a time without branches.
template <class D, class Bits = hn::TFromD<D>>
bool finite_bits(D d, const Bits* numbers, size_t n, Bits infinity) {
  constexpr size_t kAtOnce = 1024;
  const size_t lanes = hn::Lanes(d);
  const auto all_set = hn::Set(d, infinity);
  size_t i = 0;
  while (i + lanes <= n) {
    const size_t end = std::min(n, i + kAtOnce);
    auto largest = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      largest = hn::Max(largest, hn::And(hn::LoadU(d, numbers + i), all_set));
    }
    if (!hn::AllFalse(d, hn::Eq(largest, all_set))) return false;
  }
  for (; i < n; ++i) {
    if ((numbers[i] & infinity) == infinity) return false;
  }
  return true;
}

bool all_finite_of(const void* numbers, size_t n, Dtype dtype) {
  if (dtype == Dtype::f32) {
    return finite_bits(U32(), static_cast<const uint32_t*>(numbers), n, 0x7F800000u);
  }
  const uint16_t infinity = dtype == Dtype::f16 ? 0x7C00 : 0x7F80;
  return finite_bits(hn::CappedTag<uint16_t, 16>(), static_cast<const uint16_t*>(numbers), n,
                     infinity);
}

void add_step_of(const float* gradients, size_t n, const kernels::Momentum& momentum,
                 float* numbers, float* speeds) {
  const VF decay = hn::Set(F32(), momentum.decay);
  const VF own = hn::Set(F32(), momentum.nesterov ? 1.0f : 0.0f);
  const VF of_speed = hn::Set(F32(), momentum.nesterov ? momentum.decay : 1.0f);
  each_vector(n, [&](auto as, size_t i) HWY_ATTR {
    const VF gradient = as.load(gradients, i);
    const VF speed = hn::Add(hn::Mul(decay, as.load(speeds, i)), gradient);
    const VF step = hn::Add(hn::Mul(own, gradient), hn::Mul(of_speed, speed));
    as.store(hn::Add(as.load(numbers, i), step), numbers, i);
    as.store(finite_or_zero(speed), speeds, i);
  });
}

template <bool kAdd>
void rest_of(const float* wanted, const float* sent, size_t n, float factor, float* kept) {
  const VF by = hn::Set(F32(), factor);
  each_vector(n, [&](auto as, size_t i) HWY_ATTR {
    VF rest = hn::Mul(hn::Sub(as.load(wanted, i), as.load(sent, i)), by);
    if constexpr (kAdd) rest = hn::Add(as.load(kept, i), rest);
    as.store(finite_or_zero(rest), kept, i);
  });
}

void keep_rest_of(const float* wanted, const float* sent, size_t n, float factor, float* kept) {
  rest_of<false>(wanted, sent, n, factor, kept);
}

void add_rest_of(const float* wanted, const float* sent, size_t n, float factor, float* kept) {
  rest_of<true>(wanted, sent, n, factor, kept);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(scale_floats);
HWY_EXPORT(energy_of);
HWY_EXPORT(quick_energy_of);
HWY_EXPORT(all_finite_of);
HWY_EXPORT(add_step_of);
HWY_EXPORT(keep_rest_of);
HWY_EXPORT(add_rest_of);

void scale(std::span<float> numbers, float factor) noexcept {
  HWY_DYNAMIC_DISPATCH(scale_floats)(numbers.data(), numbers.size(), factor);
}

double energy(std::span<const float> numbers) noexcept {
  return HWY_DYNAMIC_DISPATCH(energy_of)(numbers.data(), numbers.size());
}

double quick_energy(ConstTensorView numbers) noexcept {
  return HWY_DYNAMIC_DISPATCH(quick_energy_of)(numbers);
}

bool all_finite(ConstTensorView numbers) noexcept {
  return HWY_DYNAMIC_DISPATCH(all_finite_of)(numbers.data, numbers.count, numbers.dtype);
}

void add_step(std::span<const float> gradients, const Momentum& momentum, std::span<float> numbers,
              std::span<float> speeds) noexcept {
  HWY_DYNAMIC_DISPATCH(add_step_of)
  (gradients.data(), gradients.size(), momentum, numbers.data(), speeds.data());
}

void keep_rest(std::span<const float> wanted, std::span<const float> sent, float factor,
               std::span<float> kept) noexcept {
  HWY_DYNAMIC_DISPATCH(keep_rest_of)
  (wanted.data(), sent.data(), wanted.size(), factor, kept.data());
}

void add_rest(std::span<const float> wanted, std::span<const float> sent, float factor,
              std::span<float> kept) noexcept {
  HWY_DYNAMIC_DISPATCH(add_rest_of)
  (wanted.data(), sent.data(), wanted.size(), factor, kept.data());
}

}  // namespace gradwire::kernels
#endif
