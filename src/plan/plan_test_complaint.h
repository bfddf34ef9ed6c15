// What functions complain about, for tests of messages.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "gradwire/error.h"

namespace gradwire {

/// What `call` complains about, with this code if one is given; "" when it does not.
template <class Call>
std::string complaint_of(Call call, std::optional<ErrorCode> code = {}) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code.value_or(error.code()));
    return error.what();
  }
  return "";
}

}  // namespace gradwire
