#include "codec/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

TEST(Codec, wrong_arguments_are_refused) {
  const Tensor x(gaussian(100), Dtype::f32);
  for (const std::string& spec : typical_specs()) {
    const Codec codec = Codec::parse(spec);
    std::vector<std::byte> out(codec.max_encoded_bytes(100));
    for (const std::uint64_t first : {1, 64, 127, 129}) {
      const Encoded done = codec.encode(x.view(), {.first_element = first}, out);
      EXPECT_EQ(done.status, Status::invalid_argument) << spec;
      EXPECT_EQ(done.bytes, 0u) << spec;
    }
    EXPECT_EQ(codec.encode({nullptr, 1, Dtype::f32}, {}, out).status, Status::invalid_argument)
        << spec;
    const auto small = std::span(out).first(out.size() - 1);
    EXPECT_EQ(codec.encode(x.view(), {}, small).status, Status::buffer_too_small) << spec;
    EXPECT_EQ(codec.decode(out, Dtype::f32, {nullptr, 1, Dtype::f32}), Status::invalid_argument)
        << spec;
  }
}

TEST(Codec, nothing_encodes_to_nothing) {
  for (const std::string& spec : every_spec()) {
    const Codec codec = Codec::parse(spec);
    EXPECT_TRUE(encode(codec, Tensor(0, Dtype::f32)).empty()) << spec;
    EXPECT_EQ(codec.decode({}, Dtype::f32, {}), Status::ok) << spec;
    const std::byte extra[1] = {};
    EXPECT_EQ(codec.decode(extra, Dtype::f32, {}), Status::corrupt) << spec;
  }
}

TEST(Traits, lossless_codecs_return_every_bit) {
  std::vector<float> x = gradient_like(5000);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[8] = -std::numeric_limits<float>::infinity();
  x[9] = std::numeric_limits<float>::denorm_min();
  bool found = false;
  for (const std::string& spec : every_spec()) {
    const Codec codec = Codec::parse(spec);
    if (!codec.traits().lossless) continue;
    found = true;
    for (const Dtype dtype : kDtypes) {
      const Tensor tensor(x, dtype);
      const Tensor decoded = decode(codec, encode(codec, tensor), dtype, x.size(), dtype);
      EXPECT_TRUE(decoded.bytes() == tensor.bytes()) << spec;
    }
  }
  EXPECT_TRUE(found);
}

TEST(Traits, fixed_sizes_depend_on_the_count_alone) {
  for (const std::string& spec : every_spec()) {
    const Codec codec = Codec::parse(spec);
    std::vector<std::size_t> sizes;
    for (const auto& x : {gradient_like(3000), gaussian(3000), std::vector<float>(3000),
                          std::vector<float>(3000, INFINITY)}) {
      const EncodeOptions options{.random = {.seed = sizes.size()}};
      sizes.push_back(encode(codec, Tensor(x, Dtype::f32), options).size());
    }
    const bool same = std::all_of(sizes.begin(), sizes.end(),
                                  [&](std::size_t size) { return size == sizes.front(); });
    EXPECT_EQ(codec.traits().fixed_size, same) << spec;
  }
}

TEST(Traits, bucketed_sizes_are_those_of_the_format) {
  const Tensor x(gaussian(1001), Dtype::f32);
  EXPECT_EQ(encode(Codec::parse("uniform:bits=4,bucket=128"), x).size(), 8u * 4 + 501);
  EXPECT_EQ(encode(Codec::parse("uniform:bits=3,bucket=100,meta=fp32"), x).size(), 11u * 8 + 376);
  EXPECT_EQ(encode(Codec::parse("exponential:bits=5,bucket=1000"), x).size(), 2u * 2 + 626);
  EXPECT_EQ(encode(Codec::parse("sign:bucket=7,meta=fp32"), x).size(), 143u * 4 + 126);
  EXPECT_EQ(encode(Codec::parse("fp16"), x).size(), 2002u);
  EXPECT_EQ(encode(Codec::parse("none"), x).size(), 4004u);
  EXPECT_EQ(encode(Codec::parse("none"), Tensor(gaussian(1001), Dtype::bf16)).size(), 2002u);
}

}  // namespace
}  // namespace gradwire::test
