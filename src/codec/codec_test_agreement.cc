#include "codec/codec_test_agreement.h"

#include <gtest/gtest.h>

#include <utility>

namespace gradwire::test {
namespace {

/// All that comes out of encoding and decoding one tensor, to every dtype.
struct Outcome {
  std::vector<std::byte> payload;
  std::vector<Tensor> decoded;
  std::vector<Tensor> added;
};

Outcome run(const Codec& codec, const Tensor& x, std::span<const float> held) {
  Outcome outcome;
  outcome.payload = encode(codec, x, {.random = {.seed = 42}, .first_element = 1 << 20});
  for (const Dtype dtype : kDtypes) {
    outcome.decoded.push_back(decode(codec, outcome.payload, x.dtype(), x.count(), dtype));
    Tensor sum(held, dtype);
    EXPECT_EQ(codec.decode_add(outcome.payload, x.dtype(), sum.view()), Status::ok);
    outcome.added.push_back(std::move(sum));
  }
  return outcome;
}

/// Sums are formed in fp32 and rounded once; narrow outputs are rounded once from what fp32 gets.
void expect_consistent(const Outcome& outcome, std::span<const float> held) {
  const std::vector<float> exact = outcome.decoded[0].floats();
  for (std::size_t d = 0; d < std::size(kDtypes); ++d) {
    std::vector<float> sum(exact.size());
    const Tensor narrow_held(held, kDtypes[d]);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = narrow_held[i] + exact[i];
    EXPECT_TRUE(outcome.decoded[d].bytes() == Tensor(exact, kDtypes[d]).bytes())
        << "decode to " << name_of(kDtypes[d]);
    EXPECT_TRUE(outcome.added[d].bytes() == Tensor(sum, kDtypes[d]).bytes())
        << "decode_add to " << name_of(kDtypes[d]);
  }
}

void expect_equal(const Outcome& outcome, const Outcome& scalar) {
  EXPECT_TRUE(outcome.payload == scalar.payload) << "encoded bytes";
  for (std::size_t d = 0; d < std::size(kDtypes); ++d) {
    EXPECT_TRUE(outcome.decoded[d].bytes() == scalar.decoded[d].bytes()) << name_of(kDtypes[d]);
    EXPECT_TRUE(outcome.added[d].bytes() == scalar.added[d].bytes()) << name_of(kDtypes[d]);
  }
}

}  // namespace

void expect_agreement(const std::string& spec, const Tensor& x) {
  SCOPED_TRACE(spec + ", " + name_of(x.dtype()) + ", count " + std::to_string(x.count()));
  const Codec codec = Codec::parse(spec);
  const std::vector<float> held = gaussian(x.count(), 99, 0.01f);
  use_isa("scalar");
  const Outcome scalar = run(codec, x, held);
  expect_consistent(scalar, held);
  on_every_isa([&] { expect_equal(run(codec, x, held), scalar); });
}

void expect_agreement(const std::vector<std::string>& specs, std::size_t count) {
  const std::vector<float> values = gradient_like(count, count);
  for (const Dtype dtype : kDtypes) {
    const Tensor x(values, dtype);
    for (const std::string& spec : specs) expect_agreement(spec, x);
  }
}

}  // namespace gradwire::test
