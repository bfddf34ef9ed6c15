#include "plan/layer_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradwire {
namespace {

constexpr double k100Mbit = 12.5e6;

std::vector<Codec> ways_with(const char* dense) {
  std::vector<Codec> ways;
  for (const char* select : {"bracket", "exact", "trimmed", "search"}) {
    ways.push_back(Codec::parse(std::string("topk:density=0.001,select=") + select));
  }
  ways.push_back(Codec::parse(dense));
  return ways;
}

TEST(LayerPolicy, large_layers_on_slow_links_are_selected_from) {
  for (const char* dense : {"none", "grid"}) {
    const auto ways = ways_with(dense);
    for (const std::size_t elements : {20'000u, 1'000'000u, 100'000'000u}) {
      EXPECT_EQ(fastest(ways, elements, {4, k100Mbit}).name(), "topk") << dense << elements;
    }
  }
}

TEST(LayerPolicy, small_layers_and_fast_links_are_not_worth_it) {
  const auto ways = ways_with("none");
  EXPECT_EQ(fastest(ways, 10, {4, k100Mbit}).name(), "none");
  EXPECT_EQ(fastest(ways, 1'000'000, {4, 1e12}).name(), "none");
  EXPECT_EQ(fastest(ways, 5'000, {4, 1000 * k100Mbit}).name(), "none");
}

TEST(LayerPolicy, more_of_a_layer_takes_longer_and_a_faster_link_less) {
  const Codec codec = Codec::parse("topk:density=0.001");
  const double seconds = exchange_seconds(codec, 1'000'000, {8, k100Mbit});
  EXPECT_GT(exchange_seconds(codec, 2'000'000, {8, k100Mbit}), 1.5 * seconds);
  EXPECT_LT(exchange_seconds(codec, 1'000'000, {8, 10 * k100Mbit}), seconds);
  // 4000 bytes of places and values of its own, four times as many of sums.
  EXPECT_NEAR(seconds, 5 * 5.4e3 * 7 / 8 / k100Mbit, 0.3 * seconds);
}

}  // namespace
}  // namespace gradwire
