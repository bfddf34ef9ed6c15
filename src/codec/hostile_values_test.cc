// Numbers that a careless codec divides by, overflows on or loses.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codec/codec_test_agreement.h"
#include "codec/codec_test_bounds.h"
#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

bool starts_with_any(const std::string& spec, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (spec.starts_with(name)) return true;
  }
  return false;
}

bool has_levels(const std::string& spec) {
  return starts_with_any(spec, {"uniform", "exponential", "grid:step"});
}

/// Every finite bucket keeps its bounds; every other one shows that it is not finite. Signs and
/// casts have no levels: theirs are tested where they are.
void expect_bounds(const std::string& spec, std::span<const float> x) {
  const Codec codec = Codec::parse(spec);
  const std::vector<float> decoded = pass(codec, Tensor(x, Dtype::f32), {.random = {.seed = 4}});
  const std::vector<Bound> allowed = bounds(codec, x);
  const double share = rounding_share(codec);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isinf(allowed[i].distance)) {
      ASSERT_FALSE(std::isfinite(decoded[i])) << spec << ", element " << i;
    } else if (!std::isfinite(x[i])) {  // sent as it is
      ASSERT_TRUE(decoded[i] == x[i] || (std::isnan(x[i]) && std::isnan(decoded[i])))
          << spec << " " << i;
    } else {
      const double error = std::fabs(static_cast<double>(decoded[i]) - x[i]);
      ASSERT_LE(error, share * allowed[i].distance + allowed[i].slack)
          << spec << ", element " << i << ": " << x[i] << " became " << decoded[i];
    }
  }
}

void expect_bounds_everywhere(std::span<const float> x) {
  on_every_isa([&] {
    for (const std::string& spec : every_spec()) {
      if (has_levels(spec)) expect_bounds(spec, x);
    }
  });
}

// ---------------------------------------------------------------------------------------------
// Not finite

class NotFinite : public testing::TestWithParam<float> {};

TEST_P(NotFinite, anywhere_arrives_and_leaves_other_buckets_alone) {
  for (const std::size_t at : {0u, 31u, 127u, 128u, 700u, 2047u, 2048u, 2999u}) {
    std::vector<float> x = gaussian(3000, at);
    x[at] = GetParam();
    for (const std::string& spec : every_spec()) {
      if (has_levels(spec)) expect_bounds(spec, x);
      EXPECT_FALSE(std::isfinite(pass(spec, x)[at])) << spec << ", element " << at;
    }
  }
}

TEST_P(NotFinite, in_half_precision_arrives) {
  std::vector<float> x = gaussian(300, 8);
  x[200] = GetParam();
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    for (const std::string& spec : every_spec()) {
      const Codec codec = Codec::parse(spec);
      const Tensor tensor(x, dtype);
      const Tensor decoded = decode(codec, encode(codec, tensor), dtype, tensor.count(), dtype);
      EXPECT_FALSE(std::isfinite(decoded[200])) << spec;
    }
  }
}

TEST_P(NotFinite, everywhere_arrives_everywhere) {
  const std::vector<float> x(1000, GetParam());
  for (const std::string& spec : every_spec()) {
    for (const float value : pass(spec, x)) ASSERT_FALSE(std::isfinite(value)) << spec;
  }
}

TEST_P(NotFinite, all_instruction_sets_agree) {
  std::vector<float> x = gaussian(1000, 9);
  for (const std::size_t at : {0u, 500u, 999u}) x[at] = GetParam();
  for (const std::string& spec : every_spec()) expect_agreement(spec, Tensor(x, Dtype::f32));
}

INSTANTIATE_TEST_SUITE_P(, NotFinite, testing::Values(kNan, kInfinity, -kInfinity),
                         [](const auto& tested) {
                           return std::string(std::isnan(tested.param) ? "nan"
                                              : tested.param > 0       ? "infinity"
                                                                       : "minus_infinity");
                         });

TEST(NotFiniteMixed, infinities_of_both_signs_do_not_cancel) {
  std::vector<float> x = gaussian(400, 10);
  x[3] = kInfinity;
  x[5] = -kInfinity;
  for (const std::string& spec : every_spec()) {
    const std::vector<float> decoded = pass(spec, x);
    EXPECT_FALSE(std::isfinite(decoded[3])) << spec;
    EXPECT_FALSE(std::isfinite(decoded[5])) << spec;
  }
}

// ---------------------------------------------------------------------------------------------
// Finite, but extreme

std::vector<float> alternating(std::initializer_list<float> values, std::size_t count = 700) {
  std::vector<float> x;
  while (x.size() < count) x.insert(x.end(), values);
  return x;
}

TEST(ExtremeValues, largest_floats_keep_their_bounds) {
  expect_bounds_everywhere(alternating({FLT_MAX, -FLT_MAX}));
  expect_bounds_everywhere(alternating({FLT_MAX, -FLT_MAX, 0, 1, FLT_MIN, -3e37f, 1e38f}));
  expect_bounds_everywhere(alternating({FLT_MAX, FLT_MIN}));
  expect_bounds_everywhere(alternating({FLT_MAX}));
  expect_bounds_everywhere(alternating({-FLT_MAX}));
  expect_bounds_everywhere(alternating({FLT_MAX, FLT_MAX / 2, FLT_MAX / 4}));
}

TEST(ExtremeValues, largest_floats_stay_finite) {
  for (const auto& x :
       {alternating({FLT_MAX, -FLT_MAX}), alternating({FLT_MAX, 0}), alternating({-FLT_MAX})}) {
    for (const std::string& spec : every_spec()) {
      if (spec == "fp16" || spec == "bf16") continue;  // too large for them
      for (const float value : pass(spec, x)) ASSERT_TRUE(std::isfinite(value)) << spec;
    }
  }
}

TEST(ExtremeValues, denormals_keep_their_bounds) {
  expect_bounds_everywhere(alternating({kSmallest, -kSmallest, 0}));
  expect_bounds_everywhere(
      alternating({kSmallest, 100 * kSmallest, -30 * kSmallest, 7 * kSmallest}));
  expect_bounds_everywhere(alternating({FLT_MIN, -FLT_MIN, kSmallest}));
  expect_bounds_everywhere(alternating({kSmallest}));
}

TEST(ExtremeValues, any_scale_keeps_its_bounds) {
  for (const float scale : {1e-44f, 1e-38f, 1e-30f, 1e-20f, 1e20f, 1e30f, 3e37f}) {
    SCOPED_TRACE(scale);
    expect_bounds_everywhere(gaussian(1000, 3, scale));
  }
}

TEST(ExtremeValues, tiny_range_far_from_zero_keeps_its_bounds) {
  for (const float centre : {1.0f, -1000.0f, 1e-20f, 1e30f}) {
    SCOPED_TRACE(centre);
    const float next = std::nextafter(centre, kInfinity);
    expect_bounds_everywhere(alternating({centre, next}));
    expect_bounds_everywhere(alternating({centre, centre * 1.0001f, centre * 0.9999f}));
  }
}

TEST(ExtremeValues, huge_range_between_buckets_keeps_their_bounds) {
  std::vector<float> x = gaussian(4096, 5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t bucket = i / 100;
    x[i] *= std::exp2(static_cast<float>(bucket) * 5 - 100);
  }
  expect_bounds_everywhere(x);
}

TEST(ExtremeValues, equal_numbers_keep_their_bounds) {
  for (const float value : {1.0f, -0.1f, 1e-30f, -1e30f})
    expect_bounds_everywhere(std::vector<float>(700, value));
}

TEST(ExtremeValues, instruction_sets_agree) {
  std::vector<float> x = alternating({FLT_MAX, -FLT_MAX, 0, -0.0f, kSmallest, FLT_MIN, 1}, 400);
  for (const float scale : {1e-44f, 1e-38f, 1e-30f, 1e30f, 3e37f}) {
    const std::vector<float> more = gaussian(400, 3, scale);
    x.insert(x.end(), more.begin(), more.end());
  }
  for (const std::string& spec : every_spec()) expect_agreement(spec, Tensor(x, Dtype::f32));
}

/// Floats of any bits: a quarter of the blocks, mixed with tamer ones so that these are not all
/// lost to NaN.
TEST(AnyBits, instruction_sets_agree) {
  std::mt19937 random(6);
  for (const Dtype dtype : kDtypes) {
    Tensor any(gaussian(800, 7), dtype);
    auto* const bytes = static_cast<std::uint8_t*>(any.view().data);
    for (std::size_t i = 0; i < any.bytes().size(); ++i) {
      if (i / 512 % 4 == 0) bytes[i] = static_cast<std::uint8_t>(random());
    }
    const Tensor x(any.floats(), dtype);  // without signalling NaNs, which no arithmetic returns
    for (const std::string& spec : every_spec()) expect_agreement(spec, x);
  }
}

// ---------------------------------------------------------------------------------------------
// Zeros

TEST(Zeros, all_zeros_stay_zero_in_every_codec) {
  for (const float zero : {0.0f, -0.0f}) {
    for (const std::string& spec : every_spec()) {
      for (const float value : pass(spec, std::vector<float>(1000, zero)))
        ASSERT_EQ(value, 0) << spec;
    }
  }
}

TEST(Zeros, among_others_stay_zero_where_the_codec_says_so) {
  const std::vector<float> x = sparse(5000, 2);
  for (const std::string& spec : every_spec()) {
    if (!Codec::parse(spec).traits().keeps_zeros) continue;
    const std::vector<float> decoded = pass(spec, x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(x[i] != 0 || decoded[i] == 0) << spec;
  }
}

TEST(Zeros, adding_zeros_changes_nothing) {
  const std::vector<float> held = gaussian(1000);
  for (const std::string& spec : every_spec()) {
    const Codec codec = Codec::parse(spec);
    const std::vector<std::byte> payload =
        encode(codec, Tensor(std::vector<float>(1000), Dtype::f32));
    Tensor sum(held, Dtype::f32);
    ASSERT_EQ(codec.decode_add(payload, Dtype::f32, sum.view()), Status::ok);
    EXPECT_TRUE(sum.bytes() == Tensor(held, Dtype::f32).bytes()) << spec;
  }
}

}  // namespace
}  // namespace gradwire::test
