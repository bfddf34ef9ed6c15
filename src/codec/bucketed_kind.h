// What uniform, exponential and sign share: everything but their settings.
#pragma once

#include <fmt/format.h>

#include "codec/kernels/bucketed.h"
#include "codec/registry.h"

namespace gradwire {

inline constexpr std::uint32_t kMaxBucket = 1u << 30;

/// The settings that every bucketed codec has.
inline bool bucketed_valid(const Codec::Params& params) noexcept {
  const auto how = unpack<kernels::Bucketed>(params);
  return how.bucket >= 1 && how.bucket <= kMaxBucket && how.rounding <= Rounding::nearest &&
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
                                  Traits (*traits)(const Codec::Params&) noexcept, CodecCost cost) {
  return {.id = id,
          .name = name,
          .parse = parse,
          .format = format,
          .valid = valid,
          .traits = traits,
          .fit = fit_nothing,
          .cost = cost,
          .max_bytes = bucketed_max_bytes,
          .encode = bucketed_encode,
          .decode = bucketed_decode};
}

/// What tells apart the codecs that round to levels.
struct Leveled {
  std::uint8_t id;
  std::string_view name;
  kernels::Scheme scheme;
  std::uint8_t min_bits;
  bool keeps_zeros;
  CodecCost cost;
};

/// The settings of a codec that rounds to levels, and all else of it.
template <const Leveled& kLeveled>
struct LeveledKind {
  using Bucketed = kernels::Bucketed;

  static Codec::Params parse(SpecReader& spec) {
    const auto bits = static_cast<std::uint8_t>(spec.integer("bits", 4, kLeveled.min_bits, 8));
    const std::uint32_t bucket = spec.integer("bucket", 128, 1, kMaxBucket);
    const auto rounding =
        static_cast<Rounding>(spec.choice("rounding", 0, std::span(kRoundings).first(2)));
    const auto meta = static_cast<Meta>(spec.choice("meta", 0, kMetas));
    return pack(Bucketed{kLeveled.scheme, bits, rounding, meta, bucket});
  }
  static std::string format(const Codec::Params& params) {
    const auto how = unpack<Bucketed>(params);
    return fmt::format("{}:bits={},bucket={},rounding={},meta={}", kLeveled.name, how.bits,
                       how.bucket, kRoundings[static_cast<int>(how.rounding)],
                       kMetas[static_cast<int>(how.meta)]);
  }
  static bool valid(const Codec::Params& params) noexcept {
    const auto how = unpack<Bucketed>(params);
    return how.scheme == kLeveled.scheme && how.bits >= kLeveled.min_bits && how.bits <= 8 &&
           bucketed_valid(params);
  }
  static Traits traits(const Codec::Params& params) noexcept {
    return {.lossless = false,
            .unbiased = unpack<Bucketed>(params).rounding == Rounding::stochastic,
            .fixed_size = true,
            .keeps_zeros = kLeveled.keeps_zeros};
  }
  static constexpr CodecKind kind() {
    return bucketed_kind(kLeveled.id, kLeveled.name, parse, format, valid, traits, kLeveled.cost);
  }
};

}  // namespace gradwire
