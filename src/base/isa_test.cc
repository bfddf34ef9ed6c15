#include "gradwire/isa.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gradwire/error.h"

namespace gradwire {
namespace {

class Isa : public testing::Test {
 protected:
  void TearDown() override { use_isa("auto"); }
};

TEST_F(Isa, available_starts_with_scalar_and_has_no_duplicates) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), "scalar");
  EXPECT_EQ(std::set(isas.begin(), isas.end()).size(), isas.size());
}

TEST_F(Isa, available_does_not_depend_on_the_one_in_use) {
  const auto isas = available_isas();
  for (const std::string& isa : isas) {
    use_isa(isa);
    EXPECT_EQ(current_isa(), isa);
    EXPECT_EQ(available_isas(), isas);
  }
}

TEST_F(Isa, auto_is_the_best) {
  use_isa("scalar");
  use_isa("auto");
  EXPECT_EQ(current_isa(), available_isas().back());
}

TEST_F(Isa, unknown_name_throws_and_lists_what_there_is) {
  const std::string before = current_isa();
  for (const char* name : {"", "avx1024", "SCALAR", "scalar "}) {
    try {
      use_isa(name);
      ADD_FAILURE() << "'" << name << "' was taken";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_NE(message.find("'" + std::string(name) + "'"), std::string::npos) << message;
      EXPECT_NE(message.find("auto"), std::string::npos) << message;
      for (const std::string& isa : available_isas()) {
        EXPECT_NE(message.find(isa), std::string::npos) << message;
      }
    }
  }
  EXPECT_EQ(current_isa(), before);
}

}  // namespace
}  // namespace gradwire
