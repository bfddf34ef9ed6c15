// What uniform, exponential and sign share: everything but their settings.
#pragma once

#include "codec/kernels/bucketed.h"
#include "codec/registry.h"

namespace gradwire {

/// The settings that every bucketed codec has.
inline bool bucketed_valid(const Codec::Params& params) noexcept {
  const auto how = unpack<kernels::Bucketed>(params);
  return how.bucket >= 1 && how.bucket <= 1u << 30 && how.rounding <= Rounding::nearest &&
         how.meta <= Meta::fp32 && rest_is_zero<kernels::Bucketed>(params);
}

inline std::size_t bucketed_max_bytes(const Codec::Params& params, std::size_t count) noexcept {
  return unpack<kernels::Bucketed>(params).payload_bytes(count) + kernels::kBucketedSlack;
}

inline std::size_t bucketed_encode(const Codec::Params& params, ConstTensorView x,
                                   const EncodeOptions& options, std::byte* out) noexcept {
  const auto how = unpack<kernels::Bucketed>(params);
  kernels::encode_bucketed(how, x, options, out);
  return how.payload_bytes(x.count);
}

inline Status bucketed_decode(const Codec::Params& params, std::span<const std::byte> payload,
                              Dtype, TensorView out, Into into) noexcept {
  const auto how = unpack<kernels::Bucketed>(params);
  if (payload.size() != how.payload_bytes(out.count)) return Status::corrupt;
  kernels::decode_bucketed(how, payload, out, into);
  return Status::ok;
}

constexpr CodecKind bucketed_kind(std::uint8_t id, std::string_view name,
                                  Codec::Params (*parse)(SpecReader&),
                                  std::string (*format)(const Codec::Params&),
                                  bool (*valid)(const Codec::Params&) noexcept,
                                  Traits (*traits)(const Codec::Params&) noexcept) {
  return {.id = id,
          .name = name,
          .parse = parse,
          .format = format,
          .valid = valid,
          .traits = traits,
          .fit = fit_nothing,
          .max_bytes = bucketed_max_bytes,
          .encode = bucketed_encode,
          .decode = bucketed_decode};
}

}  // namespace gradwire
