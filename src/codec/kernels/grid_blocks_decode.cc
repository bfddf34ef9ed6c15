#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "codec/kernels/grid_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/grid_blocks_decode.cc"
#include <hwy/foreach_target.h>

#include "codec/kernels/grid_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::HWY_NAMESPACE {

/// What turns integers into numbers.
template <bool kDither>
struct Reconstruction {
  VF step;
  RandomGroups groups;

  /// The kGroupVectors vectors of integers of the next group.
  HWY_INLINE void apply(const VI* q, VF* x) {
    VI random[kGroupVectors];
    if constexpr (kDither) groups.draw(random);
    for (size_t v = 0; v < kGroupVectors; ++v) {
      VF value = hn::ConvertTo(F32(), q[v]);
      if constexpr (kDither) {
        const VI centred = hn::Sub(hn::Set(I32(), 0x8000), random[v]);
        value = hn::Add(value, hn::Mul(hn::ConvertTo(F32(), centred), hn::Set(F32(), 0x1p-16f)));
      }
      x[v] = hn::Mul(value, step);
    }
  }
};

/// Writes the numbers of a whole block; `integers(i)` gives a vector of them.
template <bool kAdd, bool kDither, class IntegersAt>
HWY_INLINE void reconstruct(const IntegersAt& integers, Reconstruction<kDither> how, float* out) {
  for (size_t i = 0; i < kBlock; i += kGroup) {
    VI q[kGroupVectors];
    VF x[kGroupVectors];
    for (size_t v = 0; v < kGroupVectors; ++v) q[v] = integers(i + v * kLanes);
    how.apply(q, x);
    prefetch(out + i);
    prefetch(out + i + kGroup / 2);
    for (size_t v = 0; v < kGroupVectors; ++v) {
      float* const to = out + i + v * kLanes;
      hn::StoreU(kAdd ? hn::Add(hn::LoadU(F32(), to), x[v]) : x[v], F32(), to);
    }
  }
}

struct SymbolIntegers {  // no low bits, no escapes: the common case
  const uint8_t* symbols;
  HWY_INLINE VI operator()(size_t i) const {
    return hn::Sub(load_bytes(symbols + i), hn::Set(I32(), grid::kZeroSymbol));
  }
};

struct WideIntegers {
  const int32_t* q;
  HWY_INLINE VI operator()(size_t i) const { return hn::LoadU(I32(), q + i); }
};

template <class IntegersAt>
HWY_INLINE void reconstruct_block(const IntegersAt& integers, const Quantization& how, float step,
                                  StreamKey key, uint64_t element, float* out, bool add) {
  const VF wide_step = hn::Set(F32(), step);
  const RandomGroups groups(key, static_cast<uint32_t>(element / kGroup));
  if (how.rounding == Rounding::dither) {
    const Reconstruction<true> dithered{wide_step, groups};
    return add ? reconstruct<true>(integers, dithered, out)
               : reconstruct<false>(integers, dithered, out);
  }
  const Reconstruction<false> plain{wide_step, groups};
  return add ? reconstruct<true>(integers, plain, out) : reconstruct<false>(integers, plain, out);
}

/// Bytes that may come from anywhere.
struct NumberReader {
  const uint8_t* at;
  const uint8_t* end;

  HWY_INLINE const uint8_t* take(size_t bytes) {
    if (static_cast<size_t>(end - at) < bytes) return nullptr;
    at += bytes;
    return at - bytes;
  }
};

/// Unpacks n codes of `bits` bits from the reader; false when it runs out.
HWY_INLINE bool read_codes(NumberReader& reader, size_t n, int bits, uint8_t* codes) {
  HWY_ALIGN uint8_t padded[kBlock + kPackSlack] = {};
  const size_t bytes = (n * static_cast<size_t>(bits) + 7) / 8;
  const uint8_t* const packed = reader.take(bytes);
  if (packed == nullptr) return false;
  std::memcpy(padded, packed, bytes);
  unpack(padded, n, bits, codes);
  return true;
}

/// Integers of a block that has low bits or escapes.
HWY_NOINLINE bool read_wide(NumberReader& reader, const uint8_t* symbols, size_t n, int shift,
                            int32_t* q) {
  HWY_ALIGN uint8_t low[kBlock + kPackSlack] = {};
  if (shift > 0 && !read_codes(reader, n, shift, low)) return false;
  for (size_t i = 0; i < n; ++i) {
    int high = symbols[i] - grid::kZeroSymbol;
    if (symbols[i] == grid::kEscape) {
      const uint8_t* const code = reader.take(1);
      if (code == nullptr) return false;
      if (*code == kEscapeFollows) {
        const uint8_t* const whole = reader.take(2);
        if (whole == nullptr) return false;
        high = static_cast<int16_t>(whole[0] | whole[1] << 8);
      } else {
        high = grid::kMaxDirect + 1 + *code / 2;
        if (*code % 2 != 0) high = -high;
      }
    }
    q[i] = high * (1 << shift) + low[i];
  }
  for (size_t i = n; i < kBlock; ++i) q[i] = 0;
  return true;
}

HWY_INLINE bool has_escape(const uint8_t* symbols, size_t n) {
  const Bytes d;
  auto found = hn::Zero(d);
  for (size_t i = 0; i + kUnit <= kBlock; i += kUnit) {
    const auto part = hn::LoadU(d, symbols + i);
    found = hn::Or(found, hn::VecFromMask(d, hn::Eq(part, hn::Set(d, grid::kEscape))));
  }
  if (HWY_LIKELY(hn::AllTrue(d, hn::Eq(found, hn::Zero(d))))) return false;
  return std::memchr(symbols, grid::kEscape, n) != nullptr;
}

HWY_INLINE void write_numbers(const float* x, size_t n, float* out, bool add) {
  for (size_t i = 0; i < n; ++i) out[i] = add ? out[i] + x[i] : x[i];
}

/// Where a block's numbers go: straight to the output when that is a whole block of floats.
class BlockOutput {
 public:
  HWY_INLINE BlockOutput(TensorView out, size_t first, bool add)
      : out_(out), first_(first), add_(add) {
    n_ = HWY_MIN(kBlock, out.count - first);
    direct_ = n_ == kBlock && out.dtype == Dtype::f32;
    floats_ = direct_ ? static_cast<float*>(out.data) + first : scratch_;
    if (direct_ || !add) return;
    const float* held = as_floats(out, first, n_, scratch_);
    if (held != scratch_) std::memcpy(scratch_, held, n_ * sizeof(float));
    std::fill(scratch_ + n_, scratch_ + kBlock, 0.0f);
  }
  HWY_INLINE float* floats() { return floats_; }
  HWY_INLINE size_t count() const { return n_; }
  HWY_INLINE void finish() {
    if (direct_) return;
    if (out_.dtype == Dtype::f32) {
      std::memcpy(static_cast<float*>(out_.data) + first_, scratch_, n_ * sizeof(float));
    } else {
      finish_floats(out_, first_, n_, scratch_);
    }
  }
  HWY_INLINE bool add() const { return add_; }

 private:
  TensorView out_;
  size_t first_;
  size_t n_;
  bool add_;
  bool direct_;
  float* floats_;
  HWY_ALIGN float scratch_[kBlock];
};

HWY_INLINE void write_zeros(BlockOutput& to) {
  if (!to.add()) std::fill(to.floats(), to.floats() + kBlock, 0.0f);
}

HWY_INLINE bool read_raw(NumberReader& reader, BlockOutput& to) {
  HWY_ALIGN float x[kBlock];
  const uint8_t* const bytes = reader.take(to.count() * sizeof(float));
  if (bytes == nullptr) return false;
  std::memcpy(x, bytes, to.count() * sizeof(float));
  write_numbers(x, to.count(), to.floats(), to.add());
  return true;
}

HWY_INLINE bool read_block(VectorReader& coder, NumberReader& reader, const RansTable& table,
                           int shift, const Quantization& how, float step, StreamKey key,
                           uint64_t element, BlockOutput& to) {
  HWY_ALIGN uint8_t symbols[kBlock];
  const size_t n = to.count();
  for (size_t i = 0; i < n; i += kRansStates) {
    if (!coder.decode(table, symbols + i)) return false;
  }
  for (size_t i = round_up<size_t>(n, kRansStates); i < kBlock; ++i) symbols[i] = grid::kZeroSymbol;
  if (HWY_LIKELY(shift == 0 && !has_escape(symbols, n))) {
    reconstruct_block(SymbolIntegers{symbols}, how, step, key, element, to.floats(), to.add());
    return true;
  }
  HWY_ALIGN int32_t q[kBlock];
  if (!read_wide(reader, symbols, n, shift, q)) return false;
  reconstruct_block(WideIntegers{q}, how, step, key, element, to.floats(), to.add());
  return true;
}

bool grid_from_symbols(RansReader& rans, const uint8_t* classes, const Quantization& how,
                       const RansTable* tables, std::span<const std::byte> numbers, TensorView out,
                       bool add) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(numbers.data());
  NumberReader reader{begin, begin + numbers.size()};
  BlockKeys keys(how);
  VectorReader coder(rans);
  bool ok = true;
  for (size_t first = 0, b = 0; first < out.count && ok; first += kBlock, ++b) {
    BlockOutput to(out, first, add);
    const int block_class = classes[b];
    if (block_class == grid::kZeroClass) {
      write_zeros(to);
    } else if (block_class == grid::kRawClass) {
      ok = read_raw(reader, to);
    } else {
      const uint64_t element = how.first_element + first;
      ok =
          read_block(coder, reader, tables[grid::level_of(block_class)],
                     grid::shift_of(block_class), how, how.steps[b], keys.at(element), element, to);
    }
    to.finish();
  }
  coder.finish();
  return ok && reader.at == reader.end;
}

bool grid_from_packed(std::span<const std::byte> packed, const Quantization& how, TensorView out,
                      bool add) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(packed.data());
  NumberReader reader{begin, begin + packed.size()};
  HWY_ALIGN uint8_t codes[kBlock + kPackSlack];
  BlockKeys keys(how);
  for (size_t first = 0, b = 0; first < out.count; first += kBlock, ++b) {
    BlockOutput to(out, first, add);
    const uint8_t* const width = reader.take(1);
    if (width == nullptr) return false;
    if (*width == 0) {
      write_zeros(to);
    } else if (*width == kernels::kRawWidth) {
      if (!read_raw(reader, to)) return false;
    } else {
      if (*width > 8 || !read_codes(reader, to.count(), *width, codes)) return false;
      HWY_ALIGN int32_t q[kBlock] = {};
      for (size_t i = 0; i < to.count(); ++i) q[i] = codes[i] - (1 << (*width - 1));
      const uint64_t element = how.first_element + first;
      reconstruct_block(WideIntegers{q}, how, how.steps[b], keys.at(element), element, to.floats(),
                        add);
    }
    to.finish();
  }
  return reader.at == reader.end;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

HWY_EXPORT(grid_from_symbols);
HWY_EXPORT(grid_from_packed);

bool from_symbols(RansReader& reader, const std::uint8_t* classes, const Quantization& how,
                  const RansTable* tables, std::span<const std::byte> numbers, TensorView out,
                  Into into) noexcept {
  return HWY_DYNAMIC_DISPATCH(grid_from_symbols)(reader, classes, how, tables, numbers, out,
                                                 into == Into::add);
}

bool from_packed(std::span<const std::byte> packed, const Quantization& how, TensorView out,
                 Into into) noexcept {
  return HWY_DYNAMIC_DISPATCH(grid_from_packed)(packed, how, out, into == Into::add);
}

}  // namespace gradwire::kernels
#endif
