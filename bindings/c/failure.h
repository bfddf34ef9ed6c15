// How every function of the C ABI fails: with a code and a sentence, never with an exception.
#pragma once

#include <string_view>
#include <type_traits>

#include "gradwire/error.h"
#include "gradwire/gradwire.h"

namespace gradwire::c_api {

inline constexpr int kOk = GRADWIRE_OK;

/// Keeps the message for `gradwire_last_error`; returns the code.
int fail(int code, std::string_view message) noexcept;
inline int refuse(std::string_view message) noexcept {
  return fail(GRADWIRE_INVALID_ARGUMENT, message);
}
int report(Status status) noexcept;
/// Of the exception that is being handled.
int report_exception() noexcept;

/// Runs a body that returns a code, or nothing for ok; what it throws becomes a code.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return kOk;
    } else {
      return body();
    }
  } catch (...) {
    return report_exception();
  }
}

}  // namespace gradwire::c_api
