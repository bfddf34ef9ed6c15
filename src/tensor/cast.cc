#include "tensor/cast.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cast.cc"
#include <hwy/foreach_target.h>

#include "tensor/dtype_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

template <Dtype kFrom, Dtype kTo, bool kAdd>
void cast_as(const void* from, size_t n, void* to) {
  size_t i = 0;
  if constexpr (kTo == Dtype::bf16 && !kAdd) {
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      prefetch(static_cast<const std::byte*>(from) + i * size_of(kFrom));
      to_bf16(load_vector<kFrom>(from, i), load_vector<kFrom>(from, i + kLanes),
              static_cast<uint16_t*>(to) + i);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    VF x = load_vector<kFrom>(from, i);
    if constexpr (kAdd) x = hn::Add(load_vector<kTo>(to, i), x);
    store_vector<kTo>(x, to, i);
  }
  if (i == n) return;
  HWY_ALIGN uint32_t few_from[kLanes] = {};
  HWY_ALIGN uint32_t few_to[kLanes] = {};
  const char* source = static_cast<const char*>(from) + i * size_of(kFrom);
  char* target = static_cast<char*>(to) + i * size_of(kTo);
  std::memcpy(few_from, source, (n - i) * size_of(kFrom));
  std::memcpy(few_to, target, (n - i) * size_of(kTo));
  cast_as<kFrom, kTo, kAdd>(few_from, kLanes, few_to);
  std::memcpy(target, few_to, (n - i) * size_of(kTo));
}

template <Dtype kFrom, Dtype kTo>
void cast_into(const void* from, size_t n, void* to, bool add) {
  return add ? cast_as<kFrom, kTo, true>(from, n, to) : cast_as<kFrom, kTo, false>(from, n, to);
}

template <Dtype kFrom>
void cast_from(const void* from, size_t n, TensorView to, bool add) {
  if (to.dtype == Dtype::f32) return cast_into<kFrom, Dtype::f32>(from, n, to.data, add);
  if (to.dtype == Dtype::f16) return cast_into<kFrom, Dtype::f16>(from, n, to.data, add);
  return cast_into<kFrom, Dtype::bf16>(from, n, to.data, add);
}

void cast_any(ConstTensorView from, TensorView to, bool add) {
  if (from.dtype == Dtype::f32) return cast_from<Dtype::f32>(from.data, from.count, to, add);
  if (from.dtype == Dtype::f16) return cast_from<Dtype::f16>(from.data, from.count, to, add);
  return cast_from<Dtype::bf16>(from.data, from.count, to, add);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(cast_any);

void cast(ConstTensorView from, TensorView to, Into into) noexcept {
  if (from.count == 0) return;  // there may be no memory
  if (from.dtype == to.dtype && into == Into::assign) {
    std::memcpy(to.data, from.data, from.count * size_of(from.dtype));
    return;
  }
  HWY_DYNAMIC_DISPATCH(cast_any)(from, to, into == Into::add);
}

void round_to(Dtype dtype, std::span<float> numbers) noexcept {
  if (dtype == Dtype::f32) return;
  constexpr std::size_t kAtOnce = 1024;
  std::uint16_t halves[kAtOnce];
  for (std::size_t first = 0; first < numbers.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, numbers.size() - first);
    const TensorView floats{numbers.data() + first, count, Dtype::f32};
    cast(floats, {halves, count, dtype}, Into::assign);
    cast(ConstTensorView{halves, count, dtype}, floats, Into::assign);
  }
}

}  // namespace gradwire::kernels
#endif
