// Changes to the bytes of a frame that leave its checksums right: what a hostile sender would do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"

namespace gradwire::test {

// Offsets from docs/format.md.
inline constexpr std::size_t kVersionAt = 4;
inline constexpr std::size_t kReservedAt = 6;
inline constexpr std::size_t kLengthAt = 8;
inline constexpr std::size_t kSegmentCountAt = 16;
inline constexpr std::size_t kHeaderCheckAt = 20;
inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::size_t kSegmentHeaderBytes = 32;
inline constexpr std::size_t kChecksumBytes = 8;
// Within a segment's header.
inline constexpr std::size_t kCodecAt = kFrameHeaderBytes;
inline constexpr std::size_t kDtypeAt = kFrameHeaderBytes + 1;
inline constexpr std::size_t kParamsAt = kFrameHeaderBytes + 2;
inline constexpr std::size_t kCountAt = kFrameHeaderBytes + 16;
inline constexpr std::size_t kPayloadBytesAt = kFrameHeaderBytes + 24;
inline constexpr std::size_t kPayloadAt = kFrameHeaderBytes + kSegmentHeaderBytes;

/// Makes both checksums right again. The frame has at least a header and a checksum.
inline void seal(std::span<std::byte> frame) {
  const std::uint64_t header = checksum(frame.first(kHeaderCheckAt));
  store(frame.data() + kHeaderCheckAt, static_cast<std::uint32_t>(header));
  const std::size_t end = frame.size() - kChecksumBytes;
  store(frame.data() + end, checksum(frame.first(end).subspan(kFrameHeaderBytes)));
}

/// The frame with `value` at `offset`, sealed.
template <typename T>
std::vector<std::byte> with(std::vector<std::byte> frame, std::size_t offset, T value) {
  store(frame.data() + offset, value);
  seal(frame);
  return frame;
}

}  // namespace gradwire::test
