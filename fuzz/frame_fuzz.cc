// Frames, as they come and with their checks made right, so that what lies behind the checks is
// reached.
#include "base/bytes.h"
#include "base/checksum.h"
#include "fuzz_input.h"
#include "gradwire/frame.h"

namespace gradwire::fuzz {
namespace {

constexpr std::size_t kSmallestFrame = 32;

void seal(std::span<std::byte> frame) {
  store(frame.data(), std::uint32_t{0x57445247});
  store(frame.data() + 8, std::uint64_t{frame.size()});
  store(frame.data() + 20, static_cast<std::uint32_t>(checksum(frame.first(20))));
  const auto body = frame.first(frame.size() - 8);
  store(frame.data() + body.size(), checksum(body.subspan(24)));
}

/// Segments that claim more elements than a caller would have room for get a small output.
void decode_segment(FrameReader& frame, std::size_t index, std::size_t& room) {
  const SegmentView segment = frame.segment(index);
  const bool fits = segment.count <= room;
  const Output out(fits ? segment.count : 7, static_cast<Dtype>(index % kDtypeCount));
  const Status status = frame.decode(index, out.view());
  out.check();
  require(frame.decode_add(index, out.view()) == status, "decode and decode_add disagree");
  out.check();
  if (fits) {
    room -= segment.count;
    require(status == Status::ok || status == Status::corrupt, "unexpected status of a segment");
  } else {
    require(status == Status::count_mismatch, "a wrong count went unnoticed");
  }
}

void read(std::span<const std::byte> bytes) {
  FrameReader frame(bytes);
  if (frame.status() != Status::ok) return;
  require(frame.size() <= bytes.size(), "a frame is longer than its bytes");
  std::size_t room = kMostElements;
  for (std::size_t i = 0; i < frame.segment_count(); ++i) decode_segment(frame, i, room);
  if (frame.segment_count() > 0) frame.segment(0);
  const Output out(5, Dtype::f32);
  static_cast<void>(decode_frame(bytes, out.view()));
}

}  // namespace
}  // namespace gradwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire::fuzz;
  const ExactBytes frame(std::as_bytes(std::span(data, size)));
  read(frame.span());
  if (size < kSmallestFrame) return 0;
  seal(frame.span());
  read(frame.span());
  return 0;
}
