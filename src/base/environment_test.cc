#include "gradwire/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "gradwire/error.h"
#include "gradwire/isa.h"

namespace gradwire {
namespace {

/// Starts without GRADWIRE_ISA and leaves everything as it was.
class Environment : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("GRADWIRE_ISA")) before_ = value;
    unsetenv("GRADWIRE_ISA");
  }
  void TearDown() override {
    unsetenv("GRADWIRE_IAS");
    unsetenv("GRADWIRE_ISA");
    if (before_) setenv("GRADWIRE_ISA", before_->c_str(), 1);
    use_isa("auto");
  }

  /// What goes wrong, or "" when nothing does.
  static std::string message(ErrorCode expected) {
    try {
      configure_from_environment();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), expected);
      return error.what();
    }
    return "";
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(Environment, nothing_set_changes_nothing) {
  use_isa("scalar");
  configure_from_environment();
  EXPECT_EQ(current_isa(), "scalar");
}

TEST_F(Environment, isa_is_applied) {
  for (const std::string& isa : available_isas()) {
    setenv("GRADWIRE_ISA", isa.c_str(), 1);
    configure_from_environment();
    EXPECT_EQ(current_isa(), isa);
  }
}

TEST_F(Environment, wrong_value_names_the_variable_and_lists_choices) {
  for (const char* value : {"sparc", ""}) {
    setenv("GRADWIRE_ISA", value, 1);
    const std::string text = message(ErrorCode::unavailable);
    EXPECT_EQ(text.find("GRADWIRE_ISA: "), 0u) << text;
    EXPECT_NE(text.find("scalar"), std::string::npos) << text;
  }
}

TEST_F(Environment, unknown_variable_is_refused_and_known_ones_are_listed) {
  setenv("GRADWIRE_IAS", "scalar", 1);
  const std::string text = message(ErrorCode::invalid_argument);
  EXPECT_NE(text.find("GRADWIRE_IAS"), std::string::npos) << text;
  EXPECT_NE(text.find("GRADWIRE_ISA"), std::string::npos) << text;
}

TEST_F(Environment, variables_of_torch_are_known_whatever_they_hold) {
  for (const char* name :
       {"GRADWIRE", "GRADWIRE_CLIP", "GRADWIRE_CODEC", "GRADWIRE_CONNECT_TIMEOUT", "GRADWIRE_EXACT",
        "GRADWIRE_INTERFACE", "GRADWIRE_PLAN", "GRADWIRE_RESIDUAL", "GRADWIRE_SAVE_PLAN",
        "GRADWIRE_SECRET", "GRADWIRE_SUMMARY", "GRADWIRE_TRACE", "GRADWIRE_WARMUP"}) {
    setenv(name, "whatever", 1);
    EXPECT_EQ(message(ErrorCode::invalid_argument), "") << name;
    unsetenv(name);
  }
}

TEST_F(Environment, other_programs_variables_are_ignored) {
  setenv("NOT_GRADWIRE_IAS", "x", 1);
  EXPECT_EQ(message(ErrorCode::invalid_argument), "");
  unsetenv("NOT_GRADWIRE_IAS");
}

}  // namespace
}  // namespace gradwire
