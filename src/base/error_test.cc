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
