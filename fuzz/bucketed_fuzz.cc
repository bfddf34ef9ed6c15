// Payloads of uniform, exponential and sign: of the right length, filled from the input; and the
// input itself.
#include "codec/kernels/bucketed.h"
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire;
  using namespace gradwire::fuzz;
  Input input(data, size);
  const Codec codec = bucketed_codec(input);
  const Dtype into = input.dtype();
  const std::size_t count = input.take<std::uint16_t>() % 10000;
  const std::size_t bytes =
      count == 0 ? 0 : codec.max_encoded_bytes(count) - kernels::kBucketedSlack;
  const ExactBytes payload(input.rest(), bytes);
  require(decode_both_ways(codec, payload.span(), Dtype::f32, count, into) == Status::ok,
          "a payload of the right length was refused");
  const Status status = decode_both_ways(codec, input.rest(), Dtype::f32, count, into);
  require(status == (input.rest().size() == bytes ? Status::ok : Status::corrupt),
          "a wrong length went unnoticed");
  return 0;
}
