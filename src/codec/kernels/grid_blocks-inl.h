// What the grid's two directions share on vectors.
#if defined(GRADWIRE_CODEC_KERNELS_GRID_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_KERNELS_GRID_BLOCKS_INL_H_
#undef GRADWIRE_CODEC_KERNELS_GRID_BLOCKS_INL_H_
#else
#define GRADWIRE_CODEC_KERNELS_GRID_BLOCKS_INL_H_
#endif

#include "codec/kernels/bitpack-inl.h"
#include "codec/kernels/grid_blocks.h"
#include "codec/kernels/rans-inl.h"
#include "codec/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {
using grid::kBlock;
using kernels::Quantization;

/// Integers that are handled together; see rans-inl.h on how they stand in vectors.
inline constexpr size_t kUnit = kUnitStates;

inline constexpr int kEscapeFollows = 255;  // the integer did not fit in a byte: two more follow

/// Random numbers for the blocks of a chunk; the key changes once in 2^33 numbers.
class BlockKeys {
 public:
  HWY_INLINE explicit BlockKeys(const Quantization& how) : folded_(how.folded_key) {}
  HWY_INLINE StreamKey at(uint64_t element) {
    if (HWY_UNLIKELY(element >= end_)) {
      key_ = stream_key(folded_, element);
      end_ = (element / kRegionElements + 1) * kRegionElements;
    }
    return key_;
  }

 private:
  uint64_t folded_;
  uint64_t end_ = 0;
  StreamKey key_;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
