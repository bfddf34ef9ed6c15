// Every instruction set gives the scalar one's bytes and numbers, whatever is encoded or decoded.
#include "gradwire/isa.h"

#include <bit>
#include <cmath>

#include "fuzz_input.h"

namespace gradwire::fuzz {
namespace {

const std::vector<std::string>& isas() {
  static const std::vector<std::string> kIsas = available_isas();  // scalar is the first
  return kIsas;
}

/// A NaN that a decoder computes may be any NaN; all else is the same bit for bit.
bool same_number(std::uint32_t a, std::uint32_t b) {
  return a == b || (std::isnan(std::bit_cast<float>(a)) && std::isnan(std::bit_cast<float>(b)));
}

bool same_numbers(const Output& a, const Output& b) {
  if (a.view().dtype != Dtype::f32)
    return std::memcmp(a.view().data, b.view().data, a.elements().size()) == 0;
  const auto* const numbers_a = static_cast<const std::uint32_t*>(a.view().data);
  const auto* const numbers_b = static_cast<const std::uint32_t*>(b.view().data);
  for (std::size_t i = 0; i < a.view().count; ++i) {
    if (!same_number(numbers_a[i], numbers_b[i])) return false;
  }
  return true;
}

std::vector<std::byte> encoded(const Codec& codec, ConstTensorView x,
                               const EncodeOptions& options) {
  const ExactBytes out(codec.max_encoded_bytes(x.count));
  const Encoded done = codec.encode(x, options, out.span());
  require(done.status == Status::ok && done.bytes <= out.span().size(), "a codec does not encode");
  const auto bytes = out.span().first(done.bytes);
  return {bytes.begin(), bytes.end()};
}

struct Decoded {
  Status status;
  Output assigned;
  Output added;
};

Decoded decoded(const Codec& codec, std::span<const std::byte> payload, Dtype source,
                std::size_t count) {
  const ExactBytes exact(payload);
  Decoded to{Status::ok, Output(count, Dtype::f32), Output(count, Dtype::f32)};
  to.status = codec.decode(exact.span(), source, to.assigned.view());
  require(codec.decode_add(exact.span(), source, to.added.view()) == to.status,
          "decode and decode_add disagree");
  return to;
}

void compare_decoders(const Codec& codec, std::span<const std::byte> payload, Dtype source,
                      std::size_t count, bool must_decode) {
  use_isa(isas().front());
  const Decoded scalar = decoded(codec, payload, source, count);
  require(!must_decode || scalar.status == Status::ok, "a codec does not decode what it encoded");
  for (const std::string& isa : isas()) {
    use_isa(isa);
    const Decoded here = decoded(codec, payload, source, count);
    require(here.status == scalar.status, "decoders disagree whether bytes are good");
    if (here.status != Status::ok) continue;
    require(same_numbers(here.assigned, scalar.assigned), "decoded numbers differ");
    require(same_numbers(here.added, scalar.added), "added numbers differ");
  }
}

void encode_everywhere(Input input) {
  const Codec codec = any_codec(input);
  const Dtype dtype = input.dtype();
  const EncodeOptions options{
      .random = {.seed = input.take<std::uint64_t>()},
      .first_element = input.take<std::uint64_t>() / kSliceAlignment * kSliceAlignment};
  const std::size_t repeated = 1 + input.below(8);  // more numbers than the input has bytes for
  const std::size_t count = input.rest().size() / size_of(dtype) * repeated;
  const ExactBytes numbers(input.rest(), count * size_of(dtype));
  const ConstTensorView x{numbers.span().data(), count, dtype};
  use_isa(isas().front());
  const std::vector<std::byte> scalar = encoded(codec, x, options);
  for (const std::string& isa : isas()) {
    use_isa(isa);
    require(encoded(codec, x, options) == scalar, "encoded bytes differ");
  }
  compare_decoders(codec, scalar, dtype, count, true);
}

void decode_everywhere(Input input) {
  const Codec codec = any_codec(input);
  const Dtype source = input.dtype();
  const std::size_t count = input.take<std::uint16_t>();
  compare_decoders(codec, input.rest(), source, count, false);
}

}  // namespace
}  // namespace gradwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::fuzz::Input input(data, size);
  if (input.below(2) == 0) {
    gradwire::fuzz::encode_everywhere(input);
  } else {
    gradwire::fuzz::decode_everywhere(input);
  }
  return 0;
}
