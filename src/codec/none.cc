// `none`, `fp16` and `bf16`: the numbers as they are, or cast to two bytes each.
#include "codec/registry.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

Codec::Params parse_nothing(SpecReader&) { return {}; }

bool no_settings(const Codec::Params& params) noexcept { return params == Codec::Params{}; }

/// The dtype on the wire: the source's own for `none`.
using WireDtype = Dtype (*)(Dtype source) noexcept;

Dtype same(Dtype source) noexcept { return source; }
Dtype always_f16(Dtype) noexcept { return Dtype::f16; }
Dtype always_bf16(Dtype) noexcept { return Dtype::bf16; }

template <WireDtype kWire>
std::size_t max_bytes(const Codec::Params&, std::size_t count) noexcept {
  return count * size_of(kWire(Dtype::f32));
}

template <WireDtype kWire>
std::size_t encode(const Codec::Params&, ConstTensorView x, const EncodeOptions&,
                   std::byte* out) noexcept {
  const TensorView wire{out, x.count, kWire(x.dtype)};
  kernels::cast(x, wire, Into::assign);
  return wire.count * size_of(wire.dtype);
}

template <WireDtype kWire>
Status decode(const Codec::Params&, std::span<const std::byte> payload, Dtype source,
              TensorView out, Into into) noexcept {
  const ConstTensorView wire{payload.data(), out.count, kWire(source)};
  if (payload.size() != wire.count * size_of(wire.dtype)) return Status::corrupt;
  kernels::cast(wire, out, into);
  return Status::ok;
}

template <WireDtype kWire>
constexpr CodecKind cast_kind(std::uint8_t id, std::string_view name,
                              std::string (*format)(const Codec::Params&),
                              Traits (*traits)(const Codec::Params&) noexcept) {
  return {.id = id,
          .name = name,
          .elementwise = true,
          .parse = parse_nothing,
          .format = format,
          .valid = no_settings,
          .traits = traits,
          .fit = fit_nothing,
          .max_bytes = max_bytes<kWire>,
          .encode = encode<kWire>,
          .decode = decode<kWire>};
}

Traits exact_traits(const Codec::Params&) noexcept {
  return {.lossless = true, .unbiased = true, .fixed_size = true, .keeps_zeros = true};
}

Traits rounding_traits(const Codec::Params&) noexcept {
  return {.lossless = false, .unbiased = false, .fixed_size = true, .keeps_zeros = true};
}

}  // namespace

const CodecKind kNone = cast_kind<same>(
    0, "none", [](const Codec::Params&) { return std::string("none"); }, exact_traits);
const CodecKind kFp16 = cast_kind<always_f16>(
    1, "fp16", [](const Codec::Params&) { return std::string("fp16"); }, rounding_traits);
const CodecKind kBf16 = cast_kind<always_bf16>(
    2, "bf16", [](const Codec::Params&) { return std::string("bf16"); }, rounding_traits);

}  // namespace gradwire
