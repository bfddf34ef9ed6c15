#include "plan/route.h"

#include <gtest/gtest.h>

#include <string>

#include "gradwire/error.h"

namespace gradwire {
namespace {

Route route_of(const char* codec, std::size_t count, std::uint32_t ranks) {
  Traffic traffic;
  traffic.add(Codec::parse(codec), count);
  return cheapest_route(traffic, ranks);
}

TEST(Route, what_is_small_takes_one_hop) {
  EXPECT_EQ(route_of("none", 1000, 4).algorithm, "allgather");
  EXPECT_EQ(route_of("none", 1000, 16).algorithm, "sra");
  EXPECT_EQ(route_of("none", 1'000'000, 2).algorithm, "sra");
  EXPECT_EQ(route_of("none", 1'000'000, 1).bytes, 0u);
}

TEST(Route, owners_of_dense_numbers_send_twice_what_they_have) {
  EXPECT_EQ(route_of("none", 1'000'000, 4).bytes, 2 * 3 * 1'000'000u);
}

TEST(Route, exact_bytes_are_those_of_dense_owners) {
  EXPECT_EQ(exact_bytes(4'000'000, 4), route_of("none", 1'000'000, 4).bytes);
  EXPECT_EQ(exact_bytes(4'000'000, 2), 4'000'000u);
  EXPECT_EQ(exact_bytes(4'000'000, 1), 0u);
}

TEST(Route, sums_of_few_ranks_are_not_worth_sending_to_few) {
  for (const char* codec : {"topk:density=0.001", "topk:density=0.01,values=int8"}) {
    EXPECT_EQ(route_of(codec, 100'000'000, 4).algorithm, "allgather") << codec;
    EXPECT_EQ(route_of(codec, 100'000'000, 5).algorithm, "sra") << codec;
  }
  // Sums at the same places are no larger, and sums at all places are large.
  EXPECT_EQ(route_of("randomk:density=0.01", 100'000'000, 4).algorithm, "sra");
  EXPECT_EQ(route_of("randomk:density=0.01,scale=inverse", 100'000'000, 16).algorithm, "allgather");
}

TEST(Route, traffic_of_sparse_sums_does_not_grow_with_the_ranks) {
  const std::size_t few = route_of("topk:density=0.001", 100'000'000, 8).bytes;
  const std::size_t many = route_of("topk:density=0.001", 100'000'000, 1024).bytes;
  EXPECT_LT(static_cast<double>(many), 1.2 * static_cast<double>(few));
}

std::string refusal_of(const Plan& plan, const Ranks& ranks) {
  try {
    check_routes(plan, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Route, that_ranks_cannot_take_is_refused_with_its_layers) {
  const Way usual = Way::parse("sign+route:ring");
  const Way in_hosts = Way::parse("sign+route:hierarchical");
  const Plan later{
      .layers = {{"body", {{0, usual, ""}}}, {"head.*", {{0, usual, ""}, {9, in_hosts, ""}}}}};
  const Plan by_default{.otherwise = {{0, in_hosts, ""}}};
  const Ranks alike{.count = 4, .per_host = 2};
  const Ranks uneven{.count = 3, .per_host = 0};
  for (const Plan& plan : {later, by_default, Plan{}}) EXPECT_EQ(refusal_of(plan, alike), "");
  EXPECT_EQ(refusal_of(Plan{}, uneven), "");
  const std::string why =
      ": hierarchical cannot be taken: it needs the same number of ranks on every host; take one "
      "of "
      "sra, ring, tree, allgather";
  EXPECT_EQ(refusal_of(later, uneven), "the route of head.*" + why);
  EXPECT_EQ(refusal_of(by_default, uneven), "the route of the plan's default" + why);
}

}  // namespace
}  // namespace gradwire
