#include <gtest/gtest.h>

#include <vector>

#include "adapt/adapt_test_layers.h"

namespace gradwire::adapt {
namespace {

Layer with_norm(double norm) { return layer_of({{1, 3}, {2, 2}, {3, 1}, {4, 0.5}}, norm * norm); }

TEST(Linear, takes_a_bit_off_for_half_the_norm) {
  const std::vector<Layer> layers = {with_norm(8),   with_norm(7.9), with_norm(4),
                                     with_norm(3.9), with_norm(1),   with_norm(0.001)};
  EXPECT_EQ((std::vector<std::size_t>{4, 4, 3, 3, 1, 1}),
            bits_of(layers, kLinear.solve(layers, 0)));
}

TEST(Linear, zeros_take_the_fewest_bits_and_odd_numbers_the_most) {
  const std::vector<Layer> layers = {with_norm(0), with_norm(kNan), with_norm(kInfinity),
                                     with_norm(1)};
  EXPECT_EQ((std::vector<std::size_t>{1, 4, 4, 4}), bits_of(layers, kLinear.solve(layers, 0)));
}

}  // namespace
}  // namespace gradwire::adapt
