#include "plan/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "plan/cost_presets.h"

namespace gradwire {
namespace {

const Codec kSign = Codec::parse("sign");

double price(const std::array<double, kResources>& prices,
             const std::array<double, kResources>& busy) {
  return std::inner_product(prices.begin(), prices.end(), busy.begin(), 0.0);
}

/// 20 % more or less: sizes of one class have the same candidates.
std::size_t near(std::size_t elements, std::mt19937& random) {
  return static_cast<std::size_t>(static_cast<double>(elements) *
                                  std::uniform_real_distribution(0.8, 1.2)(random));
}

TEST(Candidates, have_the_best_of_all_4341_options_at_any_prices) {
  std::mt19937 random(1);
  const Cluster cluster{8, 8};
  const std::vector<Option> options = all_options(2);
  ASSERT_EQ(options.size(), 4341u);
  for (const char* testbed : {"testbed-a", "testbed-b"}) {
    const Costs costs = preset_costs(testbed);
    const WayLimits limits{.codecs = {kSign}};
    Candidates candidates(cluster, costs, limits);
    const ChainMaker maker(costs, cluster);
    for (const std::size_t about : {1U << 15U, 1U << 19U, 1U << 23U, 1U << 27U}) {
      const std::size_t elements = near(about, random);
      std::vector<std::array<double, kResources>> busy;
      for (const Option& option : options) {
        busy.push_back(busy_seconds(
            maker.make(loads_of(option, 1, cluster), kSign, costs.codec(kSign), elements)));
      }
      const auto& front = candidates.front(elements);
      EXPECT_LT(front.size(), 200u);
      for (int i = 0; i < 50; ++i) {
        std::array<double, kResources> prices{};
        for (double& each : prices) each = std::exp(std::normal_distribution(0.0, 2.0)(random));
        double best = std::numeric_limits<double>::infinity();
        for (const auto& each : busy) best = std::min(best, price(prices, each));
        double found = std::numeric_limits<double>::infinity();
        for (const Candidate& each : front) found = std::min(found, price(prices, each.busy));
        EXPECT_GE(found, best * (1 - 1e-9));
        EXPECT_LE(found, best * 1.02) << testbed << " " << elements;
      }
    }
  }
}

TEST(Candidates, are_what_their_options_ask_for) {
  const Cluster cluster{8, 8};
  const Costs costs = preset_costs("testbed-b");
  const WayLimits limits{.codecs = {kSign}};
  Candidates candidates(cluster, costs, limits);
  const ChainMaker maker(costs, cluster);
  std::set<std::string> seen;
  const std::vector<Option> options = all_options(2);
  for (const Candidate& each : candidates.front(3'000'000)) {
    const Option option = candidates.option_of(each);
    EXPECT_EQ(std::ranges::count(options, option), 1) << option.text();
    EXPECT_TRUE(seen.insert(option.text()).second) << option.text();
    EXPECT_EQ(option.needs_second_device(), each.elsewhere != 0);
    const Chain chain =
        maker.make(loads_of(option, 1, cluster), each.exact() ? Codec::parse("none") : kSign,
                   costs.codec(kSign), 3'000'000);
    EXPECT_EQ(candidates.chain_of(each), chain) << option.text();
    const auto busy = busy_seconds(chain);
    for (std::size_t i = 0; i < kResources; ++i) EXPECT_NEAR(each.busy[i], busy[i], 1e-12);
    EXPECT_NEAR(each.seconds, seconds_alone(chain), 1e-12);
  }
}

TEST(Candidates, take_a_second_device_only_where_costs_have_one) {
  Costs costs = preset_costs("testbed-b");
  for (auto& [spec, codec] : costs.codecs) codec.other_encode = codec.other_decode = CostTable();
  const WayLimits limits{.codecs = {kSign}};
  Candidates candidates({8, 8}, costs, limits);
  for (const Candidate& each : candidates.front(3'000'000)) {
    EXPECT_EQ(each.elsewhere, 0u);
    EXPECT_EQ(candidates.offloaded(each), nullptr);
  }
}

TEST(Candidates, keep_to_limits) {
  const Costs costs = preset_costs("testbed-b");
  WayLimits limits{.codecs = {kSign}, .most_encodings = 1};
  Candidates once({8, 8}, costs, limits);
  for (const Candidate& each : once.front(3'000'000)) EXPECT_LE(each.encodings, 1u);
  // sign loses 1 - 2/pi of a Gaussian's squares.
  limits = {.codecs = {kSign}, .most_error = 0.8};
  Candidates twice({8, 8}, costs, limits);
  std::uint32_t most = 0;
  for (const Candidate& each : twice.front(3'000'000)) most = std::max(most, each.encodings);
  EXPECT_EQ(most, 2u);
  limits.most_error = 0.3;
  Candidates never({8, 8}, costs, limits);
  for (const Candidate& each : never.front(3'000'000)) EXPECT_TRUE(each.exact());
}

}  // namespace
}  // namespace gradwire
