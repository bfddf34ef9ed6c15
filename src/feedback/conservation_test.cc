// Nothing is lost: what was sent and what is kept are what was there, in every step.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "codec/each_sent.h"
#include "feedback/residuals.h"
#include "gradwire/codec.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr int kSteps = 1000;
constexpr std::size_t kMostElements = 700;

/// Numbers as gradients have them: many near zero, a few large, some that are the same.
std::vector<float> gradient(std::mt19937& random, std::size_t count) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> kind(0, 9);
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    const float draw = normal(random);
    const int of = kind(random);
    x = of == 0 ? 0.0f : of == 1 ? 0.25f : of == 2 ? 30 * draw : draw * draw * draw;
  }
  return numbers;
}

/// What a message holds, as its receiver sees it.
struct Sent {
  std::vector<std::byte> payload;
  std::vector<float> numbers;
};

Sent send(const Codec& codec, std::span<const float> numbers, const RandomKey& key) {
  const ConstTensorView view{numbers.data(), numbers.size()};
  Sent sent{std::vector<std::byte>(codec.max_encoded_bytes(numbers.size())),
            std::vector<float>(numbers.size())};
  const Encoded encoded = codec.fit(view).encode(view, {key}, sent.payload);
  EXPECT_EQ(encoded.status, Status::ok);
  sent.payload.resize(encoded.bytes);
  EXPECT_EQ(
      codec.decode(sent.payload, Dtype::f32, {sent.numbers.data(), numbers.size(), Dtype::f32}),
      Status::ok);
  return sent;
}

/// As the engine does it.
void keep_rest(Residual& residual, const Codec& codec, const Sent& sent) {
  if (!codec.traits().sparse) {
    residual.keep(0, residual.numbers, sent.numbers, 1, Into::assign);
    return residual.stop(0, residual.numbers.size());
  }
  residual.keep_all(0, residual.numbers, 1, Into::assign);
  auto take = [&](std::span<const std::uint64_t> places, std::span<const float> numbers) {
    residual.take_sent(0, places, numbers, 1);
  };
  EXPECT_EQ(each_sent(codec, sent.payload, Dtype::f32, residual.numbers.size(), take), Status::ok);
}

class Conservation : public testing::TestWithParam<const char*> {};

TEST_P(Conservation, sent_and_kept_are_what_was_accumulated) {
  const Codec codec = Codec::parse(GetParam());
  for (const Feedback momentum : {Feedback{}, Feedback{0.9f}, Feedback{0.9f, true},
                                  Feedback{.momentum = 0.9f, .masking = true}}) {
    std::mt19937 random(7);
    const std::size_t count = std::uniform_int_distribution<std::size_t>(1, kMostElements)(random);
    Residual residual{KeptNumbers(count)};
    std::size_t kept = 0;
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> input = gradient(random, count);
      residual.accumulate(0, {input.data(), count}, momentum);
      const KeptNumbers accumulated = residual.numbers;
      const KeptNumbers speed = residual.momentum;
      const Sent sent = send(codec, accumulated, {3, static_cast<std::uint64_t>(step), 5, 1});
      keep_rest(residual, codec, sent);
      for (std::size_t i = 0; i < count; ++i) {
        // The difference of two floats, rounded once: nothing of it can be missing.
        const double rest = double{accumulated[i]} - double{sent.numbers[i]};
        ASSERT_EQ(residual.numbers[i], static_cast<float>(rest)) << "step " << step << ", " << i;
        if (momentum.momentum != 0) {
          const bool sends = !codec.traits().sparse || sent.numbers[i] != 0;
          const bool stops = momentum.masking && sends;
          ASSERT_EQ(residual.momentum[i], stops ? 0 : speed[i]) << "step " << step << ", " << i;
        }
        kept += residual.numbers[i] != 0 ? 1 : 0;
      }
    }
    EXPECT_GT(kept, 0u) << "there was nothing to keep";
  }
}

/// Selected numbers that are not rounded leave nothing behind, so that the sum is exact as well.
TEST(Conservation, what_travels_as_it_is_leaves_nothing) {
  std::mt19937 random(11);
  const std::vector<float> input = gradient(random, kMostElements);
  for (const char* spec : {"topk:density=0.1", "randomk:density=0.1"}) {
    const Codec codec = Codec::parse(spec);
    Residual residual{KeptNumbers(input.begin(), input.end())};
    const Sent sent = send(codec, input, {});
    keep_rest(residual, codec, sent);
    for (std::size_t i = 0; i < input.size(); ++i) {
      EXPECT_EQ(residual.numbers[i], sent.numbers[i] != 0 ? 0 : input[i]) << spec << ", " << i;
    }
  }
}

/// As a tensor of half precision holds them.
std::vector<float> rounded(std::vector<float> numbers, Dtype dtype) {
  kernels::round_to(dtype, numbers);
  return numbers;
}

TEST(Conservation, rounding_to_half_precision_loses_nothing) {
  std::mt19937 random(13);
  const std::vector<float> numbers = gradient(random, kMostElements);
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    const std::vector<float> delivered = rounded(numbers, dtype);
    std::vector<std::uint16_t> memory(kMostElements);
    const TensorView tensor{memory.data(), kMostElements, dtype};

    kernels::cast({numbers.data(), numbers.size()}, tensor, Into::assign);
    Residual first{KeptNumbers(kMostElements + 3, 1)};  // which holds something already
    first.keep_rounding(3, numbers, tensor, 4);
    for (std::size_t i = 0; i < kMostElements; ++i) {
      EXPECT_EQ(first.numbers[3 + i], 1 + 4 * (numbers[i] - delivered[i])) << i;
    }
    EXPECT_EQ(first.numbers[2], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Conservation,
    testing::Values("topk:density=0.02", "topk:density=0.02,select=exact",
                    "topk:density=0.02,select=trimmed", "topk:density=0.02,select=search",
                    "topk:density=0.02,values=fp16", "topk:density=0.02,values=int8",
                    "topk:density=0.02,values=mean", "topk:density=1,values=int8",
                    "topk:threshold=3", "randomk:density=0.02", "randomk:density=0.5,scale=inverse",
                    "grid:step=2,rounding=nearest", "uniform:bits=2,bucket=64",
                    "exponential:bits=3", "sign", "fp16", "bf16"),
    [](const auto& one) {
      std::string name = one.param;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

}  // namespace
}  // namespace gradwire
