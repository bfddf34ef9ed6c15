// Every codec on every instruction set, dtype and count; larger counts in million_elements_test.cc.
#include <gtest/gtest.h>

#include "codec/codec_test_agreement.h"

namespace gradwire::test {
namespace {

TEST(IsaAgreement, small_counts_equal_scalar) {
  for (const std::size_t count : {0, 1, 7, 8, 127, 128, 129}) expect_agreement(every_spec(), count);
}

TEST(IsaAgreement, several_tiles_equal_scalar) {
  const Tensor x(gradient_like(4095, 4095), Dtype::f32);
  for (const std::string& spec : every_spec()) expect_agreement(spec, x);
  expect_agreement(typical_specs(), 4095);  // of every dtype
}

TEST(IsaAgreement, several_chunks_equal_scalar) { expect_agreement(typical_specs(), 65536 + 4321); }

}  // namespace
}  // namespace gradwire::test
