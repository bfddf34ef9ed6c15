#include <gtest/gtest.h>

#include <vector>

#include "adapt/adapt_test_layers.h"

namespace gradwire::adapt {
namespace {

using Bits = std::vector<std::size_t>;

Layer with_norm(double norm, std::uint64_t elements = 1000) {
  Layer layer = layer_of({{1, 3}, {2, 2}, {3, 1}}, norm * norm);
  layer.elements = elements;
  return layer;
}

TEST(Kmeans, clusters_take_bits_by_their_norm) {
  // Of equal sizes, three groups of norms: (1, 2), (10, 11), (20, 22).
  const std::vector<Layer> layers = {with_norm(10), with_norm(22), with_norm(1),
                                     with_norm(11), with_norm(20), with_norm(2)};
  EXPECT_EQ((Bits{2, 3, 1, 2, 3, 1}), bits_of(layers, kKmeans.solve(layers, 0)));
}

TEST(Kmeans, sizes_count_as_much_as_norms) {
  // Divided by the standard deviations, sqrt(32) for norms and sqrt(32) * 1e5 for sizes, the places
  // are (0.18, 0.18), (0.18, 0.35), (0.18, 2.3), (2.3, 1.59) and (2.3, 1.77) for size and norm, but
  // for what the mean takes off: three clusters, of which the large layers are the second.
  const std::vector<Layer> layers = {with_norm(1, 100000), with_norm(2, 100000),
                                     with_norm(13, 100000), with_norm(9, 1300000),
                                     with_norm(10, 1300000)};
  EXPECT_EQ((Bits{1, 1, 3, 2, 2}), bits_of(layers, kKmeans.solve(layers, 0)));
}

TEST(Kmeans, unit_of_norms_and_sizes_does_not_matter) {
  std::vector<Layer> layers = random_layers(40, 4, 3);
  const Bits before = bits_of(layers, kKmeans.solve(layers, 0));
  for (Layer& layer : layers) {
    layer.energy *= 0x1p-40;
    layer.elements *= 1024;
  }
  EXPECT_EQ(before, bits_of(layers, kKmeans.solve(layers, 0)));
}

TEST(Kmeans, fewer_layers_than_candidates_take_the_most_bits) {
  const std::vector<Layer> two = {with_norm(1), with_norm(5)};
  EXPECT_EQ((Bits{2, 3}), bits_of(two, kKmeans.solve(two, 0)));
  const std::vector<Layer> one = {with_norm(1)};
  EXPECT_EQ((Bits{3}), bits_of(one, kKmeans.solve(one, 0)));
  const std::vector<Layer> alike = {with_norm(1), with_norm(1), with_norm(1), with_norm(1)};
  EXPECT_EQ((Bits{3, 3, 3, 3}), bits_of(alike, kKmeans.solve(alike, 0)));
}

TEST(Kmeans, odd_numbers_take_the_most_bits_and_leave_the_others_alone) {
  const std::vector<Layer> layers = {with_norm(kNan), with_norm(1),         with_norm(10),
                                     with_norm(0),    with_norm(kInfinity), with_norm(20)};
  EXPECT_EQ((Bits{3, 1, 2, 1, 3, 3}), bits_of(layers, kKmeans.solve(layers, 0)));
}

}  // namespace
}  // namespace gradwire::adapt
