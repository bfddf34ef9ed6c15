#include "gradwire/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gradwire {
namespace {

constexpr int kStatuses = 8;

TEST(Status, every_value_has_its_own_description) {
  std::set<std::string> descriptions;
  for (int status = 0; status < kStatuses; ++status) {
    descriptions.insert(describe(static_cast<Status>(status)));
  }
  EXPECT_EQ(descriptions.size(), static_cast<std::size_t>(kStatuses));
  EXPECT_FALSE(descriptions.contains(""));
  EXPECT_STREQ(describe(static_cast<Status>(200)), "unknown status");
}

TEST(Status, every_value_has_its_own_name) {
  std::set<std::string> names;
  for (int status = 0; status < kStatuses; ++status) {
    names.insert(name_of(static_cast<Status>(status)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kStatuses));
  EXPECT_STREQ(name_of(Status::count_mismatch), "count_mismatch");
  EXPECT_STREQ(name_of(static_cast<Status>(200)), "unknown");
}

TEST(ErrorCode, every_value_has_its_own_name) {
  constexpr int kFirst = 32;
  constexpr int kLast = 38;
  std::set<std::string> names;
  for (int code = kFirst; code <= kLast; ++code) {
    names.insert(name_of(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kLast - kFirst + 1));
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_STREQ(name_of(static_cast<ErrorCode>(200)), "unknown");
}

TEST(Check, ok_passes) { EXPECT_NO_THROW(check(Status::ok)); }

TEST(Check, failure_throws_its_description) {
  for (int value = 1; value < kStatuses; ++value) {
    const auto status = static_cast<Status>(value);
    const bool callers_fault = status == Status::buffer_too_small ||
                               status == Status::invalid_argument ||
                               status == Status::count_mismatch;
    try {
      check(status);
      ADD_FAILURE() << describe(status);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), describe(status));
      EXPECT_EQ(error.code(), callers_fault ? ErrorCode::invalid_argument : ErrorCode::bad_frame);
    }
  }
}

}  // namespace
}  // namespace gradwire
