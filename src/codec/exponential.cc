// `exponential`: a sign and a power of two. Each bucket travels as its largest magnitude, the norm;
// each number as a sign bit and a level: 0 is zero, level i of the top one is norm * 2^(i - top).
// Small numbers keep their relative precision where `uniform` rounds them all to the same few
// levels.
//
// The error of a number is below the distance of the two levels around it: at most its own
// magnitude, or norm * 2^(1 - top) for numbers below the smallest level.
#include <fmt/format.h>

#include "codec/bucketed_kind.h"

namespace gradwire {
namespace {

using kernels::Bucketed;
using kernels::Scheme;

constexpr std::span kExponentialRoundings = std::span(kRoundings).first(2);

Codec::Params parse(SpecReader& spec) {
  const auto bits = static_cast<std::uint8_t>(spec.integer("bits", 4, 2, 8));
  const std::uint32_t bucket = spec.integer("bucket", 128, 1, 1u << 30);
  const auto rounding = static_cast<Rounding>(spec.choice("rounding", 0, kExponentialRoundings));
  const auto meta = static_cast<Meta>(spec.choice("meta", 0, kMetas));
  return pack(Bucketed{Scheme::exponential, bits, rounding, meta, bucket});
}

std::string format(const Codec::Params& params) {
  const auto how = unpack<Bucketed>(params);
  return fmt::format("exponential:bits={},bucket={},rounding={},meta={}", how.bits, how.bucket,
                     kRoundings[static_cast<int>(how.rounding)],
                     kMetas[static_cast<int>(how.meta)]);
}

bool valid(const Codec::Params& params) noexcept {
  const auto how = unpack<Bucketed>(params);
  return how.scheme == Scheme::exponential && how.bits >= 2 && how.bits <= 8 &&
         bucketed_valid(params);
}

Traits traits(const Codec::Params& params) noexcept {
  return {.lossless = false,
          .unbiased = unpack<Bucketed>(params).rounding == Rounding::stochastic,
          .fixed_size = true,
          .keeps_zeros = true};
}

}  // namespace

const CodecKind kExponential = bucketed_kind(4, "exponential", parse, format, valid, traits);

}  // namespace gradwire
