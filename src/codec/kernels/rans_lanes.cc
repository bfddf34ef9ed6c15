#include "codec/rans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/rans_lanes.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/rans-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

uint16_t* encode_runs(std::span<const RansRun> runs, const uint8_t* symbols, RansStates& states,
                      uint16_t* end) {
  constexpr size_t kStateVectors = kRansStates / kLanes;
  VI x[kStateVectors];
  for (size_t v = 0; v < kStateVectors; ++v) {
    x[v] = hn::LoadU(I32(), reinterpret_cast<const int32_t*>(&states[v * kLanes]));
  }
  size_t groups = 0;
  for (const RansRun& run : runs) groups += run.groups;
  const uint8_t* at = symbols + groups * kRansStates;
  for (size_t r = runs.size(); r-- > 0;) {
    const RansTable& table = *runs[r].table;
    for (uint32_t g = 0; g < runs[r].groups; ++g) {
      at -= kRansStates;
      for (size_t u = kUnits; u-- > 0;) {
        UnitNumbers numbers;
        look_up_unit(table, at + u * kUnitStates, numbers);
        for (size_t v = 4; v-- > 0;)
          x[4 * u + v] = encode_vector(table, numbers, v, x[4 * u + v], end);
      }
    }
  }
  for (size_t v = 0; v < kStateVectors; ++v) {
    hn::StoreU(x[v], I32(), reinterpret_cast<int32_t*>(&states[v * kLanes]));
  }
  return end;
}

bool decode_groups(RansReader& reader, const RansTable& table, size_t groups, uint8_t* symbols) {
  VectorReader vectors(reader);
  bool ok = true;
  for (size_t g = 0; g < groups && ok; ++g) ok = vectors.decode(table, symbols + g * kRansStates);
  vectors.finish();
  return ok;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire {

HWY_EXPORT(encode_runs);
HWY_EXPORT(decode_groups);

std::uint16_t* rans_encode(std::span<const RansRun> runs, const std::uint8_t* symbols,
                           RansStates& states, std::uint16_t* end) noexcept {
  return HWY_DYNAMIC_DISPATCH(encode_runs)(runs, symbols, states, end);
}

bool rans_decode(RansReader& reader, const RansTable& table, std::size_t groups,
                 std::uint8_t* symbols) noexcept {
  return HWY_DYNAMIC_DISPATCH(decode_groups)(reader, table, groups, symbols);
}

}  // namespace gradwire
#endif
