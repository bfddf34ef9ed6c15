#include "gradwire/error.h"

namespace gradwire {

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
