#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/codec_test_data.h"
#include "codec/sparse.h"
#include "codec/spec.h"
#include "gradwire/random.h"

namespace gradwire::test {
namespace {

/// What a fitted codec's text says.
struct Fitted {
  float threshold;
  std::uint32_t ties;
  float low_threshold;

  explicit Fitted(const Codec& codec) {
    const std::string text = codec.spec();
    SpecReader spec(text);
    EXPECT_TRUE(spec.has("threshold")) << text;
    threshold = spec.number("threshold", 0, 0, FLT_MAX);
    ties = spec.integer("ties", 0, 0, 65535);
    low_threshold = spec.number("low_threshold", 0, 0, FLT_MAX);
  }
};

std::size_t selected(std::span<const float> decoded) {
  return static_cast<std::size_t>(
      std::count_if(decoded.begin(), decoded.end(), [](float x) { return x != 0; }));
}

constexpr const char* kEverySelect[] = {"bracket", "exact", "trimmed", "search"};

TEST(Topk, keeps_what_exceeds_the_threshold_and_nothing_else) {
  const std::vector<float> x = student_t3(100'000, 2);
  const Tensor tensor(x, Dtype::f32);
  for (const std::string select : kEverySelect) {
    const Codec codec = Codec::parse("topk:density=0.01,select=" + select).fit(tensor.view());
    const Fitted fitted(codec);
    const std::vector<float> decoded = pass(codec, tensor);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(decoded[i], std::fabs(x[i]) > fitted.threshold ? x[i] : 0) << select << " " << i;
    }
    EXPECT_GE(selected(decoded), 500u);
    EXPECT_LE(selected(decoded), 2000u);
    EXPECT_TRUE(pass("topk:density=0.01,select=" + select, x) == decoded) << "unfitted";
  }
}

TEST(Topk, exact_keeps_as_many_as_the_density_says) {
  const std::vector<float> x = student_t3(10'000, 3);
  for (const auto& [density, count] : {std::pair{"0.001", 10u},
                                       {"0.00101", 11u},
                                       {"0.5", 5000u},
                                       {"1", 10'000u},
                                       {"0.00001", 1u}}) {
    const std::string spec = std::string("topk:select=exact,density=") + density;
    EXPECT_EQ(selected(pass(spec, x)), count) << density;
  }
  EXPECT_EQ(selected(pass("topk:select=exact", std::vector<float>{3})), 1u);
}

TEST(Topk, fitted_codec_is_the_same_after_its_text_and_keeps_its_threshold) {
  const Tensor x(student_t3(5000), Dtype::f32);
  const Tensor other(student_t3(5000, 9, 100), Dtype::f32);
  for (const std::string values : {"fp32", "fp16", "int8", "mean"}) {
    const Codec fitted = Codec::parse("topk:density=0.01,values=" + values).fit(x.view());
    EXPECT_TRUE(Codec::parse(fitted.spec()) == fitted) << fitted.spec();
    EXPECT_TRUE(fitted.fit(other.view()) == fitted) << fitted.spec();
  }
}

TEST(Topk, texts_that_contradict_themselves_are_refused) {
  for (const char* spec :
       {"topk:density=0.1,threshold=1", "topk:select=exact,threshold=1", "topk:density=0",
        "topk:density=1.1", "topk:threshold=-1", "topk:threshold=inf", "topk:ties=5",
        "topk:low_threshold=1", "topk:threshold=1,low_threshold=1", "topk:values=fp8",
        "topk:select=best", "topk:threshold=1,ties=65536"}) {
    EXPECT_THROW(Codec::parse(spec), Error) << spec;
  }
}

// ---------------------------------------------------------------------------------------------
// Values

TEST(TopkValues, half_precision_errs_by_half_a_last_bit_at_any_scale) {
  for (const float scale : {1e-44f, 1e-38f, 1e-10f, 1.0f, 1e30f}) {
    const std::vector<float> x = student_t3(20'000, 5, scale);
    const std::vector<float> exact = pass("topk:density=0.1", x);
    const std::vector<float> decoded = pass("topk:density=0.1,values=fp16", x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Relative to the number, unless the largest of its group is 2^14 times as large.
      const double allowed = std::max(std::fabs(exact[i]) * 0x1p-10, 0x1p-149);
      ASSERT_NEAR(decoded[i], exact[i], allowed) << scale << " " << i;
    }
  }
}

TEST(TopkValues, bytes_err_by_half_of_the_groups_unit) {
  for (const float scale : {1e-44f, 1e-10f, 1.0f, 1e30f}) {
    const std::vector<float> x = gaussian(20'000, 6, scale);
    const std::vector<float> exact = pass("topk:density=0.1", x);
    const std::vector<float> decoded = pass("topk:density=0.1,values=int8", x);
    const double largest = 6 * scale;
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = std::fabs(double(decoded[i]) - exact[i]);
      worst = std::max(worst, error);
      ASSERT_LE(error, std::max(largest / 254 * 1.001, 0x1p-149)) << scale << " " << i;
    }
    EXPECT_TRUE(worst > largest / 1000 || scale < 1e-40f) << "not quantized at all";
  }
}

TEST(TopkValues, bytes_of_a_group_that_is_not_finite_are_exact) {
  std::vector<float> x = gaussian(1000, 7);
  x[3] = INFINITY;
  const std::vector<float> exact = pass("topk:density=0.1", x);
  EXPECT_TRUE(pass("topk:density=0.1,values=int8", x) == exact);
}

TEST(TopkValues, mean_alternates_between_the_sides) {
  std::vector<float> x(1000);
  for (const std::size_t at : {10, 20, 30, 40}) x[at] = static_cast<float>(at);
  for (const std::size_t at : {15, 25, 35}) x[at] = -static_cast<float>(at);
  const auto decoded = [&](std::uint64_t turn) {
    return pass("topk:density=0.003,select=exact,values=mean", x, {.turn = turn});
  };
  std::vector<float> high(1000), low(1000);
  for (const std::size_t at : {20, 30, 40}) high[at] = 30;
  for (const std::size_t at : {15, 25, 35}) low[at] = -25;
  EXPECT_TRUE(decoded(0) == high);
  EXPECT_TRUE(decoded(1) == low);
  EXPECT_TRUE(decoded(2) == high);
}

TEST(TopkValues, mean_fitted_serves_both_sides) {
  const Tensor x(student_t3(50'000), Dtype::f32);
  const std::string spec = "topk:density=0.01,select=exact,values=mean";
  const Codec fitted = Codec::parse(spec).fit(x.view());
  for (const std::uint64_t turn : {6, 7}) {
    const EncodeOptions options{.turn = turn};
    EXPECT_TRUE(encode(fitted, x, options) == encode(Codec::parse(spec), x, options));
  }
}

// ---------------------------------------------------------------------------------------------
// Ties

TEST(TopkTies, are_drawn_and_about_as_many_as_wanted) {
  const std::vector<float> x(200'000, -2.0f);
  for (const std::string select : kEverySelect) {
    std::size_t sum = 0;
    for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
      const std::vector<float> decoded =
          pass("topk:density=0.01,select=" + select, x, {.random = {.seed = seed}});
      sum += selected(decoded);
    }
    EXPECT_NEAR(static_cast<double>(sum), 10'000, 6 * 100 + 40) << select;  // six deviations
  }
}

TEST(TopkTies, follow_the_documented_random_bits) {
  const RandomKey key{.seed = 9, .step = 8, .tensor = 7, .rank = 6};
  std::vector<float> x(10'000, 1.0f);
  x[77] = 2;
  const Codec codec = Codec::parse("topk:threshold=1,ties=1000");
  const std::vector<float> decoded =
      pass(codec, Tensor(x, Dtype::f32), {.random = key, .first_element = 1280});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool taken = i == 77 || random_bits(key, 1280 + i) < 1000;
    ASSERT_EQ(decoded[i], taken ? x[i] : 0) << i;
  }
}

// ---------------------------------------------------------------------------------------------
// Bytes

std::size_t bytes_per_million(const std::string& spec) {
  static const std::vector<float> kNumbers = student_t3(1 << 20);
  return encode(Codec::parse(spec), Tensor(kNumbers, Dtype::f32)).size();
}

TEST(TopkBytes, places_take_little_more_than_their_entropy) {
  const double entropy = 11.41;  // bits, of a place at 0.1 %
  const double members = 1049;
  const auto bits = static_cast<double>(8 * (bytes_per_million("topk:select=exact,values=mean")));
  EXPECT_LT(bits / members, entropy + 0.4);
  const auto with_floats = static_cast<double>(8 * bytes_per_million("topk:select=exact"));
  EXPECT_NEAR(with_floats - bits, 32 * members, 64);
}

TEST(TopkBytes, all_elements_take_little_more_than_dense_ones) {
  EXPECT_LE(bytes_per_million("topk:density=1"), (4u << 20) + (1u << 20) / 128 + 16);
}

TEST(TopkBytes, half_of_the_elements_take_a_bitmap) {
  const std::size_t bitmap = (1u << 20) / 8;
  const std::size_t groups = (1u << 19) / 128;
  EXPECT_LE(bytes_per_million("topk:density=0.5,select=exact"),
            (2u << 20) + bitmap + 2 * groups + 16);
}

TEST(TopkBytes, nothing_takes_nothing) {
  EXPECT_EQ(encode(Codec::parse("topk"), Tensor(std::vector<float>(100'000), Dtype::f32)).size(),
            8u);
}

/// Every gap that a width can be wrong about.
TEST(TopkBytes, any_places_come_back) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::vector<float> x(200'000);
    std::uint64_t at = seed % 3;
    for (std::uint64_t i = 0; at < x.size(); ++i) {
      x[at] = static_cast<float>(i + 1);
      const std::uint64_t bits = random_bits({.seed = seed}, i);
      at += 1 + (bits >> (bits % 17)) * (bits % (2 * seed));
    }
    EXPECT_TRUE(pass("topk:threshold=0", x) == x) << seed;
  }
}

TEST(TopkBytes, cut_anywhere_are_refused) {
  const std::vector<float> x = student_t3(3000);
  for (const std::string values : {"fp32", "fp16", "int8", "mean"}) {
    const Codec codec = Codec::parse("topk:density=0.1,values=" + values);
    const std::vector<std::byte> payload = encode(codec, Tensor(x, Dtype::f32));
    for (std::size_t size = 0; size < payload.size(); ++size) {
      const std::vector<std::byte> cut(payload.begin(), payload.begin() + std::ptrdiff_t(size));
      Tensor out(x.size(), Dtype::f32);
      ASSERT_EQ(codec.decode(cut, Dtype::f32, out.view()), Status::corrupt) << values << size;
    }
  }
}

std::vector<std::byte> sparse_bytes(std::uint64_t count, std::initializer_list<int> rest) {
  std::vector<std::byte> bytes(8);
  store(bytes.data(), count);
  for (const int byte : rest) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

TEST(TopkBytes, places_beyond_the_tensor_are_refused) {
  const Codec codec = Codec::parse("topk:values=mean");
  Tensor out(10, Dtype::f32);
  const auto status = [&](std::uint64_t count, std::initializer_list<int> rest) {
    return codec.decode(sparse_bytes(count, rest), Dtype::f32, out.view());
  };
  EXPECT_EQ(status(1, {0, 0, 0, 0, 0, 0x80, 0}), Status::corrupt);  // a byte too many
  EXPECT_EQ(status(1, {0, 0, 0, 0, 0, 0x80}), Status::ok);          // seven zeros
  EXPECT_EQ(status(1, {0, 0, 0, 0, 0, 0, 2}), Status::ok);          // nine
  EXPECT_EQ(status(1, {0, 0, 0, 0, 0, 0, 4}), Status::corrupt);     // ten
  EXPECT_EQ(status(1, {0, 0, 0, 0, 0, 0, 0}), Status::corrupt);     // no one
  EXPECT_EQ(status(10, {0, 0, 0, 0, 255}), Status::ok);
  EXPECT_EQ(status(11, {0, 0, 0, 0, 255}), Status::corrupt);
  EXPECT_EQ(status(~std::uint64_t{0}, {0, 0, 0, 0, 255}), Status::corrupt);
  EXPECT_EQ(status(1, {0, 0, 0, 0, 57, 1, 0, 0, 0, 0, 0, 0, 0, 0}), Status::corrupt);
  EXPECT_EQ(status(1, {0, 0, 0, 0, 56, 1, 0, 0, 0, 0, 0, 0, 0}), Status::ok);
  EXPECT_EQ(status(1, {0, 0, 0, 0, 56, 1, 0, 0, 0, 0, 0, 0, 1}), Status::corrupt);
}

TEST(TopkDecodeAdd, touches_the_chosen_elements_alone) {
  std::vector<float> x(1000);
  x[5] = 3;
  const Codec codec = Codec::parse("topk:density=0.001");
  const std::vector<std::byte> payload = encode(codec, Tensor(x, Dtype::f32));
  const std::vector<float> minus_zeros(1000, -0.0f);  // which adding 0 would change
  Tensor sum(minus_zeros, Dtype::f32);
  ASSERT_EQ(codec.decode_add(payload, Dtype::f32, sum.view()), Status::ok);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::signbit(sum[i]), i != 5) << i;
}

}  // namespace
}  // namespace gradwire::test
