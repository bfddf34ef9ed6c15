// Payloads of none, fp16 and bf16.
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire;
  using namespace gradwire::fuzz;
  Input input(data, size);
  const Codec codec = cast_codec(input);
  const Dtype source = input.dtype();
  const Dtype into = input.dtype();
  const std::size_t wrong_by = input.below(8) == 7 ? 1 : 0;
  const Dtype wire = codec.name() == "none" ? source : Dtype::f16;
  const std::size_t count = input.rest().size() / size_of(wire);
  const auto payload = input.rest().first(count * size_of(wire));
  const Status status = decode_both_ways(codec, payload, source, count + wrong_by, into);
  require(status == (wrong_by == 0 ? Status::ok : Status::corrupt),
          "a wrong length went unnoticed");
  return 0;
}
