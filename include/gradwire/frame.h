// Frames: encoded numbers as they travel. `docs/format.md` is the specification.
//
// A frame holds segments, one per layer that a message covers. Each segment has its own codec,
// dtype and count, so bits may change per layer and per step without renegotiation. A checksum over
// the whole frame is verified before anything is decoded: a damaged frame never changes the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/codec.h"
#include "gradwire/error.h"
#include "gradwire/tensor.h"

namespace gradwire {

/// One layer's numbers and how to encode them.
struct Segment {
  Codec codec;
  ConstTensorView values;
  EncodeOptions options;
};

/// One segment of a received frame. Points into the frame's bytes.
struct SegmentView {
  Codec codec;
  Dtype dtype;  ///< of the numbers that were encoded
  std::size_t count;
  std::span<const std::byte> payload;
  std::size_t bytes;  ///< of the frame that it takes, with header and padding
};

/// Of every frame, besides its segments: header and checksum.
inline constexpr std::size_t kFrameOverheadBytes = 32;

/// No frame of these segments is larger.
std::size_t max_frame_bytes(std::span<const Segment> segments) noexcept;
std::size_t max_frame_bytes(const Codec& codec, std::size_t count) noexcept;

/// Whether a frame carries a checksum of its body. Without one it is only for readers that share
/// the writer's memory: they must say so, all others take it for corrupt.
enum class Seal : std::uint8_t { checksum, none };

/// Encodes the segments, in order, into the front of `out`, which has at least `max_frame_bytes`
/// bytes.
Encoded encode_frame(std::span<const Segment> segments, std::span<std::byte> out,
                     Seal seal = Seal::checksum) noexcept;

/// A checked frame. Construction verifies length, checksum and every segment header.
///
///   gradwire::FrameReader frame(bytes);
///   if (frame.status() != gradwire::Status::ok) ...
///   for (std::size_t i = 0; i < frame.segment_count(); ++i) frame.decode_add(i, outputs[i]);
///
/// The bytes must outlive the reader. Not for concurrent use; copies are cheap.
class FrameReader {
 public:
  /// `least`: what the frame must carry at least.
  explicit FrameReader(std::span<const std::byte> bytes, Seal least = Seal::checksum) noexcept;
  /// For a frame that the caller has just made with `encode_frame`: nothing is verified.
  static FrameReader own(std::span<const std::byte> bytes) noexcept;

  Status status() const noexcept { return status_; }
  std::size_t segment_count() const noexcept { return segment_count_; }
  /// The frame's own length; `bytes` may be longer.
  std::size_t size() const noexcept { return bytes_.size(); }

  /// Segments are walked in order; asking for the one after the last asked is cheap. `index` is
  /// below `segment_count()` and the status is ok.
  SegmentView segment(std::size_t index) noexcept;

  /// Decodes segment `index`; `out.count` is its count, `out.dtype` may differ from its dtype.
  Status decode(std::size_t index, TensorView out) noexcept;
  Status decode_add(std::size_t index, TensorView out) noexcept;

 private:
  FrameReader() = default;

  std::span<const std::byte> bytes_;
  Status status_ = Status::ok;
  std::size_t segment_count_ = 0;
  std::size_t at_index_ = 0;  // the segment whose header stands at at_offset_
  std::size_t at_offset_ = 0;
};

/// A frame of one segment, decoded whole. The count must be `out.count`.
Status decode_frame(std::span<const std::byte> bytes, TensorView out) noexcept;
Status decode_add_frame(std::span<const std::byte> bytes, TensorView out) noexcept;

}  // namespace gradwire
