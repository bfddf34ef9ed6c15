// Some elements of a tensor as bytes: where they stand and what they are. docs/format.md, "Sparse",
// is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "codec/each_sent.h"
#include "gradwire/codec.h"
#include "gradwire/error.h"
#include "gradwire/tensor.h"
#include "tensor/into.h"

namespace gradwire {

/// What the elements travel as, indices into kValues; also what headers carry.
enum class Values : std::uint8_t { fp32 = 0, fp16 = 1, int8 = 2, mean = 3 };
inline constexpr std::string_view kValues[] = {"fp32", "fp16", "int8", "mean"};

/// No `count` elements, of which any number is sent, take more.
std::size_t max_sparse_bytes(Values values, std::size_t count) noexcept;

/// Takes elements in the order in which they stand, and writes them in groups.
class SparseWriter {
 public:
  /// `out` has room for `max_sparse_bytes` of the count of which elements are chosen.
  SparseWriter(Values values, std::byte* out) noexcept;

  void add(std::uint64_t at, float value) noexcept {
    gaps_[members_] = at - next_;
    numbers_[members_] = value;
    next_ = at + 1;
    if (++members_ == kMembers) write_group();
  }

  /// Returns how many bytes were written.
  std::size_t finish() noexcept;

  static constexpr std::size_t kMembers = 128;  // of a group; the last one may have fewer

 private:
  void write_group() noexcept;

  const Values values_;
  std::byte* const begin_;
  std::byte* at_;
  std::uint64_t next_ = 0;  // the first element that may come
  std::uint64_t written_ = 0;
  double sum_ = 0;
  std::size_t members_ = 0;
  std::uint64_t gaps_[kMembers];
  float numbers_[kMembers];
};

/// out[places] = numbers or += numbers, at most SparseWriter::kMembers.
void scatter(std::span<const std::uint64_t> places, std::span<const float> numbers, TensorView out,
             Into into) noexcept;

/// Reads what was written of `count` elements.
Status read_sparse(Values values, std::span<const std::byte> bytes, std::size_t count,
                   NumberSink sink) noexcept;

/// What a sparse codec's `decode` does, by its `each_sent`.
template <class EachSent>
Status decode_sparse(EachSent each_sent, TensorView out, Into into) noexcept {
  if (into == Into::assign) std::memset(out.data, 0, out.count * size_of(out.dtype));
  auto put = [&](std::span<const std::uint64_t> places, std::span<const float> numbers) {
    scatter(places, numbers, out, into);
  };
  return each_sent(NumberSink(put));
}

/// Bits that the place of each takes when this share of elements is chosen, at best.
double place_bits(double density) noexcept;

/// Bits of a number.
unsigned value_bits(Values values) noexcept;

}  // namespace gradwire
