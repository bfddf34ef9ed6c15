#include "failure.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>

namespace gradwire::c_api {
namespace {

// The numbers of gradwire.h are those of error.h.
constexpr int code_of(Status status) noexcept { return static_cast<int>(status); }
constexpr int code_of(ErrorCode code) noexcept { return static_cast<int>(code); }
static_assert(code_of(Status::ok) == GRADWIRE_OK);
static_assert(code_of(Status::buffer_too_small) == GRADWIRE_BUFFER_TOO_SMALL);
static_assert(code_of(Status::invalid_argument) == GRADWIRE_INVALID_ARGUMENT);
static_assert(code_of(Status::truncated) == GRADWIRE_TRUNCATED);
static_assert(code_of(Status::corrupt) == GRADWIRE_CORRUPT);
static_assert(code_of(Status::unsupported_version) == GRADWIRE_UNSUPPORTED_VERSION);
static_assert(code_of(Status::unknown_codec) == GRADWIRE_UNKNOWN_CODEC);
static_assert(code_of(Status::count_mismatch) == GRADWIRE_COUNT_MISMATCH);
static_assert(code_of(ErrorCode::invalid_spec) == GRADWIRE_INVALID_SPEC);
static_assert(code_of(ErrorCode::invalid_argument) == GRADWIRE_INVALID_SETTING);
static_assert(code_of(ErrorCode::bad_frame) == GRADWIRE_BAD_FRAME);
static_assert(code_of(ErrorCode::unavailable) == GRADWIRE_UNAVAILABLE);
static_assert(code_of(ErrorCode::io) == GRADWIRE_IO);
static_assert(code_of(ErrorCode::timeout) == GRADWIRE_TIMEOUT);
static_assert(code_of(ErrorCode::peer_failed) == GRADWIRE_PEER_FAILED);

// An array, so that keeping a message can fail neither for want of memory nor at a thread's end.
thread_local std::array<char, 1024> last_error{};

}  // namespace

int fail(int code, std::string_view message) noexcept {
  const std::size_t length = std::min(message.size(), last_error.size() - 1);
  std::memcpy(last_error.data(), message.data(), length);
  last_error[length] = '\0';
  return code;
}

int report(Status status) noexcept {
  return status == Status::ok ? kOk : fail(code_of(status), describe(status));
}

int report_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(GRADWIRE_OUT_OF_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return fail(GRADWIRE_INTERNAL, error.what());
  } catch (...) {
    return fail(GRADWIRE_INTERNAL, "an unknown exception was thrown inside gradwire");
  }
}

}  // namespace gradwire::c_api

const char* gradwire_last_error(void) { return gradwire::c_api::last_error.data(); }
