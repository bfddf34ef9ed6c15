#include "plan/pattern.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

TEST(Pattern, stands_for_names) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  const Case cases[] = {
      {"", "", true},
      {"", "a", false},
      {"a", "a", true},
      {"a", "A", false},
      {"a", "ab", false},
      {"*", "", true},
      {"*", "a.b", true},
      {"a*", "a", true},
      {"*.bias", "0.bias", true},
      {"*.bias", "bias", false},
      {"a*b*c", "aXbYbZc", true},
      {"a*b*c", "aXcYb", false},
      {"?", "", false},
      {"a?c", "abc", true},
      {"[a-c]", "b", true},
      {"[a-c]", "d", false},
      {"[!a-c]", "d", true},
      {"[!a-c]", "b", false},
      {"[^a]", "b", false},
      {"[^a]", "^", true},
      {"[]x]", "]", true},
      {"[!]]", "]", false},
      {"[!]]", "x", true},
      {"[a", "[a", true},
      {"[a", "a", false},
      {"w[0]", "w0", true},
      {"w[0]", "w[0]", false},
      {"[[:alpha:]]", "a]", true},
      {"[a-]", "-", true},
      {"blocks.[0-3].*", "blocks.2.w", true},
      {"**", "x", true},
      {"*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(matches(each.pattern, each.name), each.matches) << each.pattern << " " << each.name;
  }
}

TEST(Pattern, a_letter_that_ends_no_text_is_one) {
  EXPECT_FALSE(matches(std::string("a\0b", 3), "a"));
  EXPECT_TRUE(matches(std::string("a?b"), std::string("a\0b", 3)));
}

}  // namespace
}  // namespace gradwire
