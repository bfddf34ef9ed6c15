#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace gradwire {
namespace {

std::uint64_t checksum_of(std::string_view text) {
  return checksum(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Checksum, known_texts_give_the_published_xxh3) {
  EXPECT_EQ(checksum_of(""), 0x2d06800538d394c2u);
  EXPECT_EQ(checksum_of("a"), 0xe6c632b61e964e1fu);
  EXPECT_EQ(checksum_of("abc"), 0x78af5f94892f3950u);
}

TEST(Checksum, any_flipped_bit_changes_it) {
  std::vector<std::byte> bytes(300, std::byte{0x5a});
  const std::uint64_t before = checksum(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(checksum(bytes), before) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace gradwire
