// Every codec on every instruction set, dtype and count; larger counts in million_elements_test.cc.
#include <gtest/gtest.h>

#include "codec/codec_test_agreement.h"

namespace gradwire::test {
namespace {

TEST(IsaAgreement, small_counts_equal_scalar) {
  for (const std::size_t count : {0, 1, 7, 8, 127, 128, 129}) expect_agreement(every_spec(), count);
}

TEST(IsaAgreement, several_tiles_equal_scalar) { expect_agreement(every_spec(), 4095); }

TEST(IsaAgreement, several_chunks_equal_scalar) { expect_agreement(typical_specs(), 65536 + 4321); }

}  // namespace
}  // namespace gradwire::test
