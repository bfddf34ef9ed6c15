#include "plan/resources.h"

#include <gtest/gtest.h>

#include "gradwire/codec.h"

namespace gradwire {
namespace {

constexpr std::size_t kLane = std::size_t{8} << 20;

TEST(PieceElements, are_large_over_a_network_and_small_in_memory) {
  const std::size_t network = piece_elements({.ranks = 2, .lane_bytes = kLane}, false);
  const std::size_t memory =
      piece_elements({.ranks = 2, .in_memory = true, .lane_bytes = kLane}, false);
  EXPECT_EQ(network, 1u << 19);
  EXPECT_EQ(memory, 1u << 16);
  EXPECT_EQ(piece_elements({.ranks = 2, .in_memory = true, .lane_bytes = kLane}, true), 1u << 19);
}

TEST(PieceElements, are_what_is_asked_for_as_far_as_it_fits) {
  EXPECT_EQ(piece_elements({.ranks = 2, .asked = 1000, .lane_bytes = kLane}, false), 896u);
  EXPECT_EQ(piece_elements({.ranks = 2, .asked = 1, .lane_bytes = kLane}, true), kSliceAlignment);
  EXPECT_EQ(piece_elements({.ranks = 2, .asked = 1u << 30, .lane_bytes = kLane}, false), 1u << 19);
}

TEST(CodecThreads, leave_a_core_to_the_caller_and_one_to_messages) {
  EXPECT_EQ(codec_threads(1, 0), 0u);
  EXPECT_EQ(codec_threads(2, 0), 0u);
  EXPECT_EQ(codec_threads(4, 0), 2u);
  EXPECT_EQ(codec_threads(64, 0), 4u);
  EXPECT_EQ(codec_threads(1, 3), 2u);
}

}  // namespace
}  // namespace gradwire
