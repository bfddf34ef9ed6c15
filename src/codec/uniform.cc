// `uniform`: CGX's bucketed max-min quantizer. Each bucket travels as its minimum and its unit, the
// distance between two of its 2^bits levels; each number as the index of a level.
//
// The error of a number is below one unit (stochastic) or half a unit (nearest), plus the rounding
// of a float. The unit is (max - min) / (2^bits - 1), where `meta=bf16` rounds the minimum down and
// the unit up to bf16: no number lies outside of the levels, so stochastic rounding stays unbiased.
// bf16 and not fp16, since gradients below 6e-8 would vanish in fp16. `meta=fp32` is what CGX does.
#include <fmt/format.h>

#include "codec/bucketed_kind.h"

namespace gradwire {
namespace {

using kernels::Bucketed;
using kernels::Scheme;

constexpr std::span kUniformRoundings = std::span(kRoundings).first(2);

Codec::Params parse(SpecReader& spec) {
  const auto bits = static_cast<std::uint8_t>(spec.integer("bits", 4, 1, 8));
  const std::uint32_t bucket = spec.integer("bucket", 128, 1, 1u << 30);
  const auto rounding = static_cast<Rounding>(spec.choice("rounding", 0, kUniformRoundings));
  const auto meta = static_cast<Meta>(spec.choice("meta", 0, kMetas));
  return pack(Bucketed{Scheme::uniform, bits, rounding, meta, bucket});
}

std::string format(const Codec::Params& params) {
  const auto how = unpack<Bucketed>(params);
  return fmt::format("uniform:bits={},bucket={},rounding={},meta={}", how.bits, how.bucket,
                     kRoundings[static_cast<int>(how.rounding)],
                     kMetas[static_cast<int>(how.meta)]);
}

bool valid(const Codec::Params& params) noexcept {
  const auto how = unpack<Bucketed>(params);
  return how.scheme == Scheme::uniform && how.bits >= 1 && how.bits <= 8 && bucketed_valid(params);
}

Traits traits(const Codec::Params& params) noexcept {
  return {.lossless = false,
          .unbiased = unpack<Bucketed>(params).rounding == Rounding::stochastic,
          .fixed_size = true,
          .keeps_zeros = false};
}

}  // namespace

const CodecKind kUniform = bucketed_kind(3, "uniform", parse, format, valid, traits);

}  // namespace gradwire
