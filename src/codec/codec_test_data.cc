#include "codec/codec_test_data.h"

#include <algorithm>

namespace gradwire::test {

std::vector<std::string> every_spec() {
  std::vector<std::string> specs = {"none", "fp16", "bf16"};
  const char* const roundings[] = {"stochastic", "nearest", "dither"};
  const char* const buckets[] = {"1", "7", "100", "128", "1000", "4096"};
  for (const std::string meta : {"bf16", "fp32"}) {
    for (const std::string bucket : buckets) {
      const std::string shared = ",bucket=" + bucket + ",meta=" + meta;
      specs.push_back("sign:" + shared.substr(1));
      for (const std::string rounding : std::span(roundings).first(2)) {
        for (int bits = 1; bits <= 8; ++bits) {
          const std::string own =
              ":bits=" + std::to_string(bits) + ",rounding=" + rounding + shared;
          specs.push_back("uniform" + own);
          if (bits >= 2) specs.push_back("exponential" + own);
        }
      }
    }
  }
  for (const std::string rounding : roundings) {
    for (const std::string locality : {"0", "0.5", "1"}) {
      for (const std::string target : {"step=0.5", "step=0.01", "nmse=0.01"}) {
        specs.push_back("grid:" + target + ",locality=" + locality + ",rounding=" + rounding);
      }
    }
  }
  for (const std::string values : {"fp32", "fp16", "int8", "mean"}) {
    for (const std::string select : {"bracket", "exact", "trimmed", "search"}) {
      specs.push_back("topk:density=0.05,select=" + select + ",values=" + values);
    }
    specs.push_back("topk:density=0.001,values=" + values);
    specs.push_back("topk:density=1,values=" + values);
    specs.push_back("topk:threshold=0.5,ties=30000,values=" + values);
  }
  for (const std::string scale : {"none", "inverse"}) {
    for (const std::string density : {"0.01", "0.3", "1"}) {
      specs.push_back("randomk:density=" + density + ",scale=" + scale);
    }
  }
  return specs;
}

std::vector<std::string> typical_specs() {
  return {"none",
          "fp16",
          "bf16",
          "uniform:bits=4,bucket=128",
          "uniform:bits=3,bucket=100,rounding=nearest,meta=fp32",
          "exponential:bits=4,bucket=128",
          "exponential:bits=3,bucket=7,rounding=nearest,meta=fp32",
          "sign:bucket=100",
          "grid:step=0.5",
          "grid:step=0.01,locality=0,rounding=dither",
          "grid:nmse=0.01,locality=1,rounding=nearest",
          "topk:density=0.01",
          "topk:density=0.1,select=exact,values=int8",
          "topk:density=0.01,select=search,values=mean",
          "randomk:density=0.1,scale=inverse"};
}

std::vector<std::byte> encode(const Codec& codec, const Tensor& x, const EncodeOptions& options) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kMark{0xa5};
  const std::vector<std::byte>& bytes = x.bytes();
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  const std::size_t most = codec.max_encoded_bytes(x.count());
  std::vector<std::byte> out(most + kGuard, kMark);
  const Encoded done = codec.encode(x.view(), options, std::span(out).first(most));
  EXPECT_EQ(done.status, Status::ok) << codec.spec();
  EXPECT_LE(done.bytes, most) << codec.spec();
  EXPECT_TRUE(std::all_of(out.end() - kGuard, out.end(), [](std::byte b) { return b == kMark; }))
      << codec.spec() << ": wrote beyond max_encoded_bytes";
  EXPECT_TRUE(before == x.bytes()) << codec.spec() << ": changed its input";
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(done.bytes)};
}

Tensor decode(const Codec& codec, std::span<const std::byte> payload, Dtype source,
              std::size_t count, Dtype dtype) {
  Tensor out(count, dtype);
  EXPECT_EQ(codec.decode(payload, source, out.view()), Status::ok) << codec.spec();
  return out;
}

std::vector<float> pass(const Codec& codec, const Tensor& x, const EncodeOptions& options) {
  return decode(codec, encode(codec, x, options), x.dtype(), x.count()).floats();
}

std::vector<float> pass(std::string_view spec, std::span<const float> x,
                        const EncodeOptions& options) {
  return pass(Codec::parse(spec), Tensor(x, Dtype::f32), options);
}

}  // namespace gradwire::test
