// Payloads of grid.
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire;
  using namespace gradwire::fuzz;
  Input input(data, size);
  const Codec codec = grid_codec(input);
  const Dtype into = input.dtype();
  const std::size_t count = input.take<std::uint32_t>() % kMostElements;
  const Status status = decode_both_ways(codec, input.rest(), Dtype::f32, count, into);
  require(status == Status::ok || status == Status::corrupt, "unexpected status of a payload");
  return 0;
}
