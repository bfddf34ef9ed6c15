#include <gtest/gtest.h>

#include <vector>

#include "gradwire/tensor.h"

namespace gradwire {
namespace {

TEST(Dtype, names_and_sizes_are_those_of_the_format) {
  EXPECT_STREQ(name_of(Dtype::f32), "f32");
  EXPECT_STREQ(name_of(Dtype::f16), "f16");
  EXPECT_STREQ(name_of(Dtype::bf16), "bf16");
  EXPECT_STREQ(name_of(static_cast<Dtype>(kDtypeCount)), "unknown");
  EXPECT_EQ(size_of(Dtype::f32), 4u);
  EXPECT_EQ(size_of(Dtype::f16), 2u);
  EXPECT_EQ(size_of(Dtype::bf16), 2u);
}

TEST(TensorView, slice_starts_at_the_element_and_keeps_the_dtype) {
  std::vector<float> x(10);
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const TensorView part = TensorView{x.data(), 10, dtype}.slice(3, 4);
    const ConstTensorView same = ConstTensorView{x.data(), 10, dtype}.slice(3, 4);
    EXPECT_EQ(static_cast<char*>(part.data) - reinterpret_cast<char*>(x.data()),
              static_cast<std::ptrdiff_t>(3 * size_of(dtype)));
    EXPECT_EQ(part.data, same.data);
    EXPECT_EQ(part.count, 4u);
    EXPECT_EQ(part.dtype, dtype);
  }
}

}  // namespace
}  // namespace gradwire
