#include "terminal/text_table.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire::cli {
namespace {

TextTable example() {
  TextTable table({{"codec", "", Align::left}, {"encode", "GB/s"}});
  table.add_section("128 MiB");
  table.add_row({"none", "8.50"});
  table.add_row({"uniform", "12.25"}, Emphasis::strong);
  return table;
}

TEST(TextTable, columns_are_as_wide_as_their_widest_cell) {
  EXPECT_EQ(
      "codec    encode\n"
      "           GB/s\n"
      "\n"
      "128 MiB\n"
      "none       8.50\n"
      "uniform   12.25\n",
      example().render(/*colour=*/false));
}

TEST(TextTable, colour_adds_escape_codes_and_changes_no_text) {
  std::string text = example().render(/*colour=*/true);
  EXPECT_NE(std::string::npos, text.find("\x1b[1muniform"));
  for (std::size_t at = 0; (at = text.find('\x1b')) != std::string::npos;) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  EXPECT_EQ(example().render(/*colour=*/false), text);
}

TEST(TextTable, columns_without_units_have_one_heading_line) {
  TextTable table({{"a"}, {"b"}});
  table.add_row({"1"});
  EXPECT_EQ("a  b\n1\n", table.render(/*colour=*/false));
}

}  // namespace
}  // namespace gradwire::cli
