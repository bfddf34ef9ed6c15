#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(RunningChecksum, any_pieces_give_the_checksum_of_the_whole) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  for (const std::size_t piece : {1, 7, 64, 256, 1000, 4999, 5000}) {
    RunningChecksum running;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      running.take(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(running.value(), checksum(bytes)) << "pieces of " << piece;
  }
  EXPECT_EQ(RunningChecksum().value(), checksum({}));
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
