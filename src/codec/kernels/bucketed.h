// Codecs that describe each bucket of consecutive numbers by one or two floats and each number by a
// code of a few bits: uniform, exponential, sign.
//
// Layout of a payload of n numbers, nb = ceil(n / bucket): the buckets' floats ("meta", bf16 or
// fp32), then the packed codes, ceil(n * bits / 8) bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/spec.h"
#include "gradwire/codec.h"
#include "tensor/into.h"

namespace gradwire::kernels {

enum class Scheme : std::uint8_t {
  uniform,      ///< meta: unit, minimum; x = minimum + unit * code
  exponential,  ///< meta: norm; sign bit above a level; x = ± norm * 2^(level - top), level 0 is
                ///< zero
  sign,         ///< meta: mean magnitude; x = ± mean
};

struct Bucketed {
  Scheme scheme;
  std::uint8_t bits;
  Rounding rounding;
  Meta meta;
  std::uint32_t bucket;

  std::size_t meta_bytes(std::size_t count) const noexcept {
    const std::size_t buckets = count / bucket + (count % bucket != 0);
    return buckets * (scheme == Scheme::uniform ? 2 : 1) * (meta == Meta::fp32 ? 4 : 2);
  }
  std::size_t payload_bytes(std::size_t count) const noexcept {
    return meta_bytes(count) + (count / 8) * bits + (count % 8 * bits + 7) / 8;
  }
};

/// What `encode_bucketed` may overwrite behind the payload.
inline constexpr std::size_t kBucketedSlack = 64;

void encode_bucketed(const Bucketed& how, ConstTensorView x, const EncodeOptions& options,
                     std::byte* out) noexcept;

/// `payload` has `how.payload_bytes(out.count)` bytes.
void decode_bucketed(const Bucketed& how, std::span<const std::byte> payload, TensorView out,
                     Into into) noexcept;

}  // namespace gradwire::kernels
