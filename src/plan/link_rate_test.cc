#include "plan/link_rate.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire {
namespace {

TEST(LinkRate, units_are_powers_of_1000) {
  EXPECT_EQ(64'000U, parse_link_rate("64kbit").bits_per_second);
  EXPECT_EQ(100'000'000U, parse_link_rate("100mbit").bits_per_second);
  EXPECT_EQ(10'000'000'000U, parse_link_rate("10gbit").bits_per_second);
  EXPECT_EQ(2'500'000'000U, parse_link_rate("2.5gbit").bits_per_second);
  EXPECT_EQ(12.5e6, parse_link_rate("100mbit").bytes_per_second());
}

TEST(LinkRate, none_is_not_limited) {
  EXPECT_FALSE(parse_link_rate("none").limited());
  EXPECT_TRUE(parse_link_rate("8kbit").limited());
}

TEST(LinkRate, anything_else_is_refused_with_what_is_allowed) {
  for (const char* text :
       {"", "gbit", "1", "1g", "1gb", "1GBIT", "1 gbit", "-1gbit", "+1gbit", "1e3mbit", "nan",
        "nangbit", "infgbit", "0mbit", "1kbit", "1001gbit", "1gbit ", "None"}) {
    try {
      parse_link_rate(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::invalid_argument, error.code());
      EXPECT_NE(std::string_view(error.what()).find("kbit, mbit or gbit"), std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace gradwire
