#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>

namespace gradwire {
namespace {

TEST(Bytes, store_writes_little_endian_at_any_address) {
  std::array<std::byte, 7> bytes{};
  store(bytes.data() + 1, std::uint32_t{0x04030201});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bytes[1 + i], std::byte(i + 1));
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(bytes[5], std::byte{0});
  EXPECT_EQ(load<std::uint32_t>(bytes.data() + 1), 0x04030201u);
}

TEST(Bytes, round_up_and_divide_up_count_started_parts) {
  EXPECT_EQ(round_up(0u, 8u), 0u);
  EXPECT_EQ(round_up(1u, 8u), 8u);
  EXPECT_EQ(round_up(16u, 8u), 16u);
  EXPECT_EQ(divide_up(0u, 7u), 0u);
  EXPECT_EQ(divide_up(7u, 7u), 1u);
  EXPECT_EQ(divide_up(8u, 7u), 2u);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(divide_up<std::uint64_t>(kMost, 2), kMost / 2 + 1) << "no overflow";
}

}  // namespace
}  // namespace gradwire
