#include "hosts/link_rate.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

TEST(LinkRate, units_are_powers_of_1000) {
  EXPECT_EQ(64'000U, parse_link_rate("64kbit").bits_per_second);
  EXPECT_EQ(100'000'000U, parse_link_rate("100mbit").bits_per_second);
  EXPECT_EQ(10'000'000'000U, parse_link_rate("10gbit").bits_per_second);
  EXPECT_EQ(2'500'000'000U, parse_link_rate("2.5gbit").bits_per_second);
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

TEST(LinkRate, shaper_has_two_milliseconds_of_burst_and_twenty_of_queue) {
  EXPECT_EQ("tbf rate 1000000000bit burst 266384b limit 2766384b",
            shaper_arguments(parse_link_rate("1gbit")));
  EXPECT_EQ("tbf rate 8000bit burst 16386b limit 278530b",
            shaper_arguments(parse_link_rate("8kbit")));
}

}  // namespace
}  // namespace gradwire::cli
