#include "terminal/byte_size.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

TEST(ByteSize, suffixes_are_powers_of_1024) {
  EXPECT_EQ(12U, parse_byte_size("12"));
  EXPECT_EQ(262144U, parse_byte_size("256K"));
  EXPECT_EQ(134217728U, parse_byte_size("128M"));
  EXPECT_EQ(3221225472U, parse_byte_size("3G"));
}

TEST(ByteSize, anything_else_is_refused) {
  for (const char* text : {"", "K", "-1", "1.5M", "1 M", "1T", "12x", "0x10",
                           "18446744073709551616", "18446744073709551615K"}) {
    EXPECT_THROW(parse_byte_size(text), Error) << text;
  }
}

TEST(ByteSize, printed_in_the_largest_unit_that_divides_it) {
  EXPECT_EQ("128 MiB", format_byte_size(134217728));
  EXPECT_EQ("256 KiB", format_byte_size(262144));
  EXPECT_EQ("1000 B", format_byte_size(1000));
  EXPECT_EQ("0 B", format_byte_size(0));
}

}  // namespace
}  // namespace gradwire::cli
