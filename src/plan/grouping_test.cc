#include "plan/grouping.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire {
namespace {

Traveller of(const char* codec, std::size_t count, std::string route = {}) {
  return {.codec = Codec::parse(codec), .route = std::move(route), .count = count};
}

TEST(GroupForSums, what_loses_something_is_alone_and_what_is_exact_together) {
  const std::vector<Traveller> tensors{of("none", 100), of("uniform", 100'000), of("none", 7),
                                       of("grid", 100'000), of("uniform", 100'000)};
  const auto groups = group_for_sums(tensors, "auto", 4);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].tensors, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(groups[1].tensors, std::vector<std::size_t>{1});
  EXPECT_EQ(groups[2].tensors, std::vector<std::size_t>{3});
  EXPECT_EQ(groups[3].tensors, std::vector<std::size_t>{4});
}

TEST(GroupForSums, exact_ones_of_another_route_are_another_group) {
  const std::vector<Traveller> tensors{of("none", 100, "ring"), of("none", 100),
                                       of("none", 100, "ring")};
  const auto groups = group_for_sums(tensors, "auto", 4);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].tensors, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(groups[0].algorithm, "ring");
}

TEST(GroupForSums, the_algorithm_follows_from_all_that_is_sent_together) {
  const std::vector<Traveller> few(3, of("none", 1000));
  EXPECT_EQ(group_for_sums(few, "auto", 3)[0].algorithm, "allgather");
  const std::vector<Traveller> many(300, of("none", 1000));
  EXPECT_EQ(group_for_sums(many, "auto", 3)[0].algorithm, "sra");
  EXPECT_EQ(group_for_sums(many, "tree", 3)[0].algorithm, "tree");
}

TEST(GroupForSums, what_is_lossy_takes_the_same_route_whatever_else_there_is) {
  const Traveller small = of("uniform", 2000);
  const auto alone = group_for_sums(std::vector{small}, "auto", 4);
  const auto among = group_for_sums(std::vector{of("uniform", 1 << 22), small}, "auto", 4);
  EXPECT_EQ(alone[0].algorithm, among[1].algorithm);
  EXPECT_NE(among[0].algorithm, among[1].algorithm);
}

TEST(GroupForSums, nothing_is_a_group_of_nothing) {
  ASSERT_EQ(group_for_sums({}, "auto", 4).size(), 1u);
  EXPECT_TRUE(group_for_sums({}, "auto", 4)[0].tensors.empty());
}

TEST(GroupAll, takes_the_route_that_is_asked_for_if_it_is_one) {
  EXPECT_EQ(group_all(std::vector{of("none", 9)}, Collective::broadcast).algorithm, "tree");
  EXPECT_EQ(group_all(std::vector{of("none", 9)}, Collective::all_gather).algorithm, "sra");
  EXPECT_EQ(group_all({}, Collective::barrier).algorithm, "tree");
  const std::vector<Traveller> two{of("none", 9, "ring"), of("none", 9)};
  EXPECT_EQ(group_all(std::span(two).first(1), Collective::all_gather).algorithm, "ring");
  EXPECT_THROW(group_all(two, Collective::all_gather), Error);
}

}  // namespace
}  // namespace gradwire
