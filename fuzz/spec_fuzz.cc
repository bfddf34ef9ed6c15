// Codec texts: refused with a sentence, or accepted and then written out and read back as the same
// codec.
#include "fuzz_input.h"
#include "gradwire/error.h"

namespace gradwire::fuzz {
namespace {

void use(const Codec& codec) {
  const std::string spec = codec.spec();
  require(Codec::parse(spec) == codec, "a codec's text gives another codec");
  require(Codec::parse(spec).spec() == spec, "a codec's text changes when it is read back");
  const float numbers[] = {1, -2, 0.5f, 0, 1e-40f};
  const ExactBytes payload(codec.max_encoded_bytes(std::size(numbers)));
  const Encoded encoded =
      codec.encode({numbers, std::size(numbers), Dtype::f32}, {}, payload.span());
  require(encoded.status == Status::ok, "a codec does not encode");
  const Status status = decode_both_ways(codec, payload.span().first(encoded.bytes), Dtype::f32,
                                         std::size(numbers), Dtype::f32);
  require(status == Status::ok, "a codec does not decode what it encoded");
}

}  // namespace
}  // namespace gradwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire;
  try {
    fuzz::use(Codec::parse({reinterpret_cast<const char*>(data), size}));
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::invalid_spec, "a wrong text is not called one");
  }
  return 0;
}
