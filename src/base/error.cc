#include "gradwire/error.h"

namespace gradwire {

const char* name_of(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::buffer_too_small:
      return "buffer_too_small";
    case Status::invalid_argument:
      return "invalid_argument";
    case Status::truncated:
      return "truncated";
    case Status::corrupt:
      return "corrupt";
    case Status::unsupported_version:
      return "unsupported_version";
    case Status::unknown_codec:
      return "unknown_codec";
    case Status::count_mismatch:
      return "count_mismatch";
  }
  return "unknown";
}

const char* name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_spec:
      return "invalid_spec";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::bad_frame:
      return "bad_frame";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::io:
      return "io";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_failed:
      return "peer_failed";
  }
  return "unknown";
}

const char* describe(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::buffer_too_small:
      return "the output buffer is too small; size it with max_frame_bytes or max_encoded_bytes";
    case Status::invalid_argument:
      return "invalid argument: data must not be null and slices must start at a multiple of 128 "
             "elements";
    case Status::truncated:
      return "the frame is cut short; pass all the bytes that encode wrote";
    case Status::corrupt:
      return "the bytes are not an intact gradwire frame (wrong magic, checksum or structure)";
    case Status::unsupported_version:
      return "the frame has a format version this gradwire does not know; upgrade the receiver";
    case Status::unknown_codec:
      return "the frame uses a codec or dtype this gradwire does not know; upgrade the receiver";
    case Status::count_mismatch:
      return "the frame holds another number of segments or elements than the output; decode into "
             "an "
             "output of the frame's size";
  }
  return "unknown status";
}

void check(Status status) {
  if (status == Status::ok) return;
  const bool callers_fault = status == Status::buffer_too_small ||
                             status == Status::invalid_argument || status == Status::count_mismatch;
  throw Error(callers_fault ? ErrorCode::invalid_argument : ErrorCode::bad_frame, describe(status));
}

}  // namespace gradwire
