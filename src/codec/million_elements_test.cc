#include <gtest/gtest.h>

#include "codec/codec_test_agreement.h"

namespace gradwire::test {
namespace {

constexpr std::size_t kCount = 1'000'003;

TEST(MillionElements, every_codec_and_dtype_equals_scalar) {
  expect_agreement(typical_specs(), kCount);
}

TEST(MillionElements, every_setting_of_the_grid_equals_scalar) {
  const Tensor x(gradient_like(kCount), Dtype::f32);
  for (const std::string& spec : every_spec()) {
    if (spec.starts_with("grid")) expect_agreement(spec, x);
  }
}

}  // namespace
}  // namespace gradwire::test
