#include "feedback/residuals.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire {
namespace {

TEST(Residuals, start_at_zero_and_keep_what_is_written) {
  Residuals residuals;
  Residual& a = residuals.at("a", 3);
  EXPECT_EQ(a.sent, std::vector<float>(3));
  a.summed[1] = 5;
  EXPECT_EQ(residuals.at("a", 3).summed[1], 5);
  EXPECT_EQ(&residuals.at("a", 3), &a);
  EXPECT_EQ(residuals.at("b", 3).summed[1], 0);
}

TEST(Residuals, another_size_under_the_same_name_is_refused) {
  Residuals residuals;
  residuals.at("a", 3);
  EXPECT_THROW(residuals.at("a", 4), Error);
}

TEST(Residuals, saved_ones_load_equal) {
  Residuals residuals;
  residuals.at("a", 3).sent = {1, 2, 3};
  residuals.at("", 0);
  residuals.at("b", 1).summed = {-4};
  Residuals loaded;
  loaded.at("old", 2);
  loaded.load(residuals.save());
  EXPECT_EQ(loaded.at("a", 3).sent, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(loaded.at("b", 1).summed[0], -4);
  EXPECT_EQ(loaded.save(), residuals.save());
}

TEST(Residuals, damaged_bytes_are_refused_and_change_nothing) {
  Residuals residuals;
  residuals.at("a", 3).sent = {1, 2, 3};
  const auto bytes = residuals.save();
  Residuals other;
  other.at("b", 1).sent[0] = 7;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{4};
    EXPECT_THROW(other.load(damaged), Error) << i;
    EXPECT_THROW(other.load(std::span(bytes).first(i)), Error) << i;
  }
  EXPECT_EQ(other.at("b", 1).sent[0], 7);
}

}  // namespace
}  // namespace gradwire
