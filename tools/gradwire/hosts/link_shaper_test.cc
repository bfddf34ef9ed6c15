#include "hosts/link_shaper.h"

#include <gtest/gtest.h>

namespace gradwire::cli {
namespace {

TEST(LinkShaper, a_rate_has_two_milliseconds_of_burst_and_twenty_of_queue) {
  EXPECT_EQ("tbf rate 1000000000bit burst 266384b limit 2766384b",
            shaper_arguments(parse_link_rate("1gbit")));
  EXPECT_EQ("tbf rate 8000bit burst 16386b limit 278530b",
            shaper_arguments(parse_link_rate("8kbit")));
}

}  // namespace
}  // namespace gradwire::cli
