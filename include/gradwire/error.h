// How gradwire reports failure.
//
// Set-up (parsing a spec, choosing an instruction set) throws `Error`. Hot paths (encode, decode)
// are `noexcept` and return a `Status`; `check` turns one into the other at the edges.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gradwire {

/// The outcome of a call on a hot path. Numbers are part of the C ABI and never change meaning.
enum class Status : std::uint8_t {
  ok = 0,
  buffer_too_small =
      1,  ///< the output has fewer bytes than `max_encoded_bytes` / `max_frame_bytes`
  invalid_argument = 2,  ///< a misaligned `first_element`, a null pointer with a count
  truncated = 3,         ///< the bytes end before the frame does
  corrupt = 4,           ///< wrong magic, checksum or structure: these bytes are not what was sent
  unsupported_version = 5,  ///< a frame of a newer gradwire
  unknown_codec = 6,        ///< a frame that uses a codec or dtype this build does not know
  count_mismatch = 7,  ///< the frame holds another number of segments or elements than asked for
};

/// The value's name as it is written here, for logs and other languages. Static storage; never
/// null.
const char* name_of(Status status) noexcept;

/// One sentence on what happened and what to do about it. Static storage; never null.
const char* describe(Status status) noexcept;

/// What the caller of a throwing function did wrong. Numbers are part of the C ABI.
enum class ErrorCode : std::uint8_t {
  invalid_spec = 32,      ///< an unknown codec, key or value in a codec's text
  invalid_argument = 33,  ///< a wrong shape, dtype, alignment or name
  bad_frame = 34,         ///< bytes that do not decode; `what()` carries the status
  unavailable = 35,       ///< this CPU, build or system does not have what was asked for
  io = 36,                ///< a file or a socket cannot be read or written
  timeout = 37,           ///< a deadline passed; `what()` names the rank that was waited for
  peer_failed = 38,       ///< another rank died, left or sent garbage; `what()` names it
};

/// The value's name as it is written here. Static storage; never null.
const char* name_of(ErrorCode code) noexcept;

/// The one exception gradwire throws. `what()` says what happened and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws `Error` with the status' description unless it is `ok`.
void check(Status status);

}  // namespace gradwire
