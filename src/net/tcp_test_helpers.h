// Deadlines, callers and refusals for tests of what listens.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/addresses.h"

namespace gradwire {

inline Deadline in(int milliseconds) {
  return Clock::now() + std::chrono::milliseconds(milliseconds);
}

inline bool answers(const std::string& host, const std::string& port) {
  return static_cast<bool>(connect_tcp_address(host + " " + port, in(2000)));
}

inline std::string error_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

inline void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

}  // namespace gradwire
