#include "base/byte_cursor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace gradwire {
namespace {

TEST(ByteCursor, what_is_written_is_read_front_to_back) {
  ByteWriter writer;
  const std::array<std::uint16_t, 3> halves{1, 2, 3};
  writer.write(std::uint32_t{0x04030201});
  writer.write_all(std::span<const std::uint16_t>(halves));
  ASSERT_EQ(writer.bytes().size(), 10u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(writer.bytes()[i], std::byte(i + 1)) << "little-endian";

  const std::vector<std::byte> bytes = std::move(writer).finish();
  ByteReader reader(bytes);
  std::uint32_t number = 0;
  std::array<std::uint16_t, 2> two{};
  std::span<const std::byte> rest;
  ASSERT_TRUE(reader.read(number));
  EXPECT_EQ(number, 0x04030201u);
  ASSERT_TRUE(reader.read_all(std::span<std::uint16_t>(two)));
  EXPECT_EQ(two[1], 2);
  EXPECT_EQ(reader.rest().data(), bytes.data() + 8);
  ASSERT_TRUE(reader.take(2, rest));
  EXPECT_EQ(rest[0], std::byte{3});
  EXPECT_TRUE(reader.empty());
}

TEST(ByteReader, what_is_not_there_is_refused_and_nothing_is_taken) {
  const std::array<std::byte, 3> bytes{};
  ByteReader reader(bytes);
  std::uint32_t number = 7;
  std::array<std::uint16_t, 2> two{7, 7};
  std::span<const std::byte> part;
  EXPECT_FALSE(reader.read(number));
  EXPECT_FALSE(reader.read_all(std::span<std::uint16_t>(two)));
  EXPECT_FALSE(reader.take(4, part));
  EXPECT_EQ(number, 7u);
  EXPECT_EQ(two[0], 7);
  EXPECT_TRUE(part.empty());
  EXPECT_EQ(reader.rest().size(), 3u);
}

TEST(ByteReader, nothing_can_be_taken_of_nothing) {
  ByteReader reader({});
  std::span<float> none;
  std::span<const std::byte> part;
  EXPECT_TRUE(reader.read_all(none));
  EXPECT_TRUE(reader.take(0, part));
  EXPECT_TRUE(reader.empty());
}

}  // namespace
}  // namespace gradwire
