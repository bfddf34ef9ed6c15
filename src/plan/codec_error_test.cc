#include "plan/codec_error.h"

#include <gtest/gtest.h>

#include <numbers>

namespace gradwire {
namespace {

double error_of(const char* spec) { return codec_error(Codec::parse(spec)); }

TEST(CodecError, is_that_of_gaussian_numbers) {
  EXPECT_EQ(error_of("none"), 0);
  // Every number is sent as the mean magnitude, sqrt(2/pi), with its sign.
  EXPECT_NEAR(error_of("sign"), 1 - 2 / std::numbers::pi, 0.005);
  // 11 bits of mantissa, rounded to nearest.
  EXPECT_GT(error_of("fp16"), 0);
  EXPECT_LT(error_of("fp16"), 1e-6);
  EXPECT_GT(error_of("topk:density=0.01"), 0.8);
  EXPECT_LT(error_of("topk:density=0.01"), 1);
}

TEST(CodecError, is_less_with_more_bits) {
  EXPECT_LT(error_of("uniform:bits=8,bucket=128"), error_of("uniform:bits=4,bucket=128") / 100);
  EXPECT_LT(error_of("grid:step=0.25"), error_of("grid:step=0.5"));
}

}  // namespace
}  // namespace gradwire
