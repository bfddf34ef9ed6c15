// Payloads of topk and randomk.
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire;
  using namespace gradwire::fuzz;
  Input input(data, size);
  const Codec codec = sparse_codec(input);
  const Dtype source = input.dtype();
  const Dtype into = input.dtype();
  const std::size_t count = input.take<std::uint32_t>() % kMostElements;
  const Status status = decode_both_ways(codec, input.rest(), source, count, into);
  require(status == Status::ok || status == Status::corrupt, "unexpected status of a payload");
  return 0;
}
