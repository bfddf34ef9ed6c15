// Frames, as docs/format.md specifies them.
#include "gradwire/frame.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/checksum.h"
#include "codec/notes.h"
#include "codec/registry.h"

namespace gradwire {
namespace {

struct FrameHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t flags;
  std::uint64_t length;  // of the whole frame, checksum included
  std::uint32_t segment_count;
  std::uint32_t
      check;  // of the fields above, so that a damaged length is not taken for a short read
};
static_assert(sizeof(FrameHeader) == 24);

struct SegmentHeader {
  std::uint8_t codec;
  std::uint8_t dtype;
  Codec::Params params;
  std::uint64_t count;
  std::uint64_t payload_bytes;
};
static_assert(sizeof(SegmentHeader) == 32);

constexpr std::uint32_t kMagic = 0x57445247;  // "GRDW"
constexpr std::uint16_t kVersion = 1;
constexpr std::uint16_t kUnsealed = 1;  // flag: the checksum is 0 and means nothing
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kAlignment = 8;  // of segments in the frame
static_assert(sizeof(FrameHeader) + kChecksumBytes == kFrameOverheadBytes);

std::uint32_t header_check(const FrameHeader& header) noexcept {
  return static_cast<std::uint32_t>(
      checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, check))));
}

std::size_t max_segment_bytes(const Codec& codec, std::size_t count) noexcept {
  return sizeof(SegmentHeader) + codec.max_encoded_bytes(count) + kAlignment;
}

/// Checks a segment header against the `room` bytes that follow it.
Status check_segment(const SegmentHeader& header, std::size_t room) noexcept {
  const CodecKind* kind = find_kind(header.codec);
  if (kind == nullptr || header.dtype >= kDtypeCount) return Status::unknown_codec;
  if (!kind->valid(header.params)) return Status::corrupt;
  if (header.payload_bytes > room) return Status::corrupt;
  return round_up<std::uint64_t>(header.payload_bytes, kAlignment) > room ? Status::corrupt
                                                                          : Status::ok;
}

bool padding_is_zero(const std::byte* at, std::size_t payload_bytes) noexcept {
  for (std::size_t i = payload_bytes; i < round_up(payload_bytes, kAlignment); ++i) {
    if (at[i] != std::byte{0}) return false;
  }
  return true;
}

/// Length and checksum; on success the frame's own bytes are left in `bytes`.
Status check_envelope(std::span<const std::byte>& bytes, FrameHeader& header, Seal least) noexcept {
  if (bytes.size() < sizeof(FrameHeader)) return Status::truncated;
  header = load<FrameHeader>(bytes.data());
  if (header.magic != kMagic || header.check != header_check(header)) return Status::corrupt;
  if (header.length < kFrameOverheadBytes) return Status::corrupt;
  if (header.length > bytes.size()) return Status::truncated;
  bytes = bytes.first(header.length);
  const std::size_t end = bytes.size() - kChecksumBytes;
  const auto body = bytes.first(end).subspan(sizeof(FrameHeader));
  const bool sealed = (header.flags & kUnsealed) == 0;
  if (!sealed && least == Seal::checksum) return Status::corrupt;
  const std::uint64_t expected = sealed ? checksum(body) : 0;
  if (expected != load<std::uint64_t>(bytes.data() + end)) return Status::corrupt;
  if (header.version != kVersion) return Status::unsupported_version;
  return (header.flags & ~kUnsealed) == 0 ? Status::ok : Status::corrupt;
}

/// Elements that are encoded, and then hashed while they are still in the cache.
constexpr std::size_t kStretch = 16384;

/// Writes a segment with its padding, and hashes it if there is something to hash it with.
Encoded encode_segment(const Segment& segment, std::span<const double> notes,
                       std::span<std::byte> out, RunningChecksum* body) noexcept {
  const CodecKind& kind = CodecAccess::kind(segment.codec);
  const ConstTensorView x = segment.values;
  std::span<std::byte> room = out.subspan(sizeof(SegmentHeader));
  EncodeOptions options = segment.options;
  std::size_t first = kind.elementwise && body != nullptr ? std::min(kStretch, x.count) : x.count;
  Encoded encoded = encode(segment.codec, x.slice(0, first), options, notes, room);
  if (encoded.status != Status::ok) return encoded;
  const std::size_t payload_bytes =
      first < x.count ? encoded.bytes / first * x.count : encoded.bytes;
  store(out.data(), SegmentHeader{.codec = kind.id,
                                  .dtype = static_cast<std::uint8_t>(x.dtype),
                                  .params = CodecAccess::params(segment.codec),
                                  .count = x.count,
                                  .payload_bytes = payload_bytes});
  if (body != nullptr) body->take(out.first(sizeof(SegmentHeader) + encoded.bytes));
  while (first < x.count) {
    room = room.subspan(encoded.bytes);
    options.first_element = segment.options.first_element + first;
    const std::size_t stretch = std::min(kStretch, x.count - first);
    encoded = encode(segment.codec, x.slice(first, stretch), options, notes, room);
    if (encoded.status != Status::ok) return encoded;
    if (body != nullptr) body->take(room.first(encoded.bytes));
    first += stretch;
  }
  const std::size_t padding = round_up(payload_bytes, kAlignment) - payload_bytes;
  const auto pad = out.subspan(sizeof(SegmentHeader) + payload_bytes, padding);
  std::fill(pad.begin(), pad.end(), std::byte{0});
  if (body != nullptr) body->take(pad);
  return {Status::ok, sizeof(SegmentHeader) + payload_bytes + padding};
}

template <class AnySegment>
std::size_t max_bytes_of(std::span<const AnySegment> segments) noexcept {
  std::size_t bytes = kFrameOverheadBytes;
  for (const AnySegment& segment : segments) {
    bytes += max_segment_bytes(segment.codec, segment.values.count);
  }
  return bytes;
}

std::span<const double> notes_of(const Segment&) noexcept { return {}; }
std::span<const double> notes_of(const NotedSegment& segment) noexcept { return segment.notes; }

template <class AnySegment>
Encoded encode_all(std::span<const AnySegment> segments, std::span<std::byte> out,
                   Seal seal) noexcept {
  if (out.size() < max_bytes_of(segments)) return {Status::buffer_too_small, 0};
  std::size_t offset = sizeof(FrameHeader);
  RunningChecksum checksum;
  RunningChecksum* const body = seal == Seal::checksum ? &checksum : nullptr;
  for (const AnySegment& segment : segments) {
    const Encoded encoded = encode_segment(segment, notes_of(segment), out.subspan(offset), body);
    if (encoded.status != Status::ok) return {encoded.status, 0};
    offset += encoded.bytes;
  }
  FrameHeader header{.magic = kMagic,
                     .version = kVersion,
                     .flags = seal == Seal::checksum ? std::uint16_t{0} : kUnsealed,
                     .length = offset + kChecksumBytes,
                     .segment_count = static_cast<std::uint32_t>(segments.size()),
                     .check = 0};
  header.check = header_check(header);
  store(out.data(), header);
  store(out.data() + offset, body != nullptr ? body->value() : std::uint64_t{0});
  return {Status::ok, offset + kChecksumBytes};
}

/// Walks all segment headers; they must fill the frame exactly.
Status check_segments(std::span<const std::byte> bytes, std::size_t segment_count) noexcept {
  std::size_t offset = sizeof(FrameHeader);
  const std::size_t end = bytes.size() - kChecksumBytes;
  for (std::size_t i = 0; i < segment_count; ++i) {
    if (end - offset < sizeof(SegmentHeader)) return Status::corrupt;
    const auto header = load<SegmentHeader>(bytes.data() + offset);
    offset += sizeof(SegmentHeader);
    const Status status = check_segment(header, end - offset);
    if (status != Status::ok) return status;
    if (!padding_is_zero(bytes.data() + offset, header.payload_bytes)) return Status::corrupt;
    offset += round_up<std::size_t>(header.payload_bytes, kAlignment);
  }
  return offset == end ? Status::ok : Status::corrupt;
}

}  // namespace

std::size_t max_frame_bytes(std::span<const Segment> segments) noexcept {
  return max_bytes_of(segments);
}

std::size_t max_frame_bytes(const Codec& codec, std::size_t count) noexcept {
  return kFrameOverheadBytes + max_segment_bytes(codec, count);
}

Encoded encode_frame(std::span<const Segment> segments, std::span<std::byte> out,
                     Seal seal) noexcept {
  return encode_all(segments, out, seal);
}

Encoded encode_frame(std::span<const NotedSegment> segments, std::span<std::byte> out,
                     Seal seal) noexcept {
  return encode_all(segments, out, seal);
}

FrameReader::FrameReader(std::span<const std::byte> bytes, Seal least) noexcept : bytes_(bytes) {
  FrameHeader header;
  status_ = check_envelope(bytes_, header, least);
  if (status_ == Status::ok) status_ = check_segments(bytes_, header.segment_count);
  if (status_ == Status::ok) segment_count_ = header.segment_count;
  at_offset_ = sizeof(FrameHeader);
}

FrameReader FrameReader::own(std::span<const std::byte> bytes) noexcept {
  FrameReader frame;
  frame.bytes_ = bytes;
  frame.segment_count_ = load<FrameHeader>(bytes.data()).segment_count;
  frame.at_offset_ = sizeof(FrameHeader);
  return frame;
}

SegmentView FrameReader::segment(std::size_t index) noexcept {
  if (index < at_index_) {
    at_index_ = 0;
    at_offset_ = sizeof(FrameHeader);
  }
  while (true) {
    const auto header = load<SegmentHeader>(bytes_.data() + at_offset_);
    const std::size_t segment_bytes =
        sizeof(SegmentHeader) + round_up<std::size_t>(header.payload_bytes, kAlignment);
    if (at_index_ == index) {
      return {CodecAccess::make(find_kind(header.codec), header.params),
              static_cast<Dtype>(header.dtype), header.count,
              bytes_.subspan(at_offset_ + sizeof(SegmentHeader), header.payload_bytes),
              segment_bytes};
    }
    at_offset_ += segment_bytes;
    ++at_index_;
  }
}

namespace {

Status decode_segment(FrameReader& frame, std::size_t index, TensorView out, Into into) noexcept {
  if (frame.status() != Status::ok) return frame.status();
  if (index >= frame.segment_count()) return Status::count_mismatch;
  const SegmentView segment = frame.segment(index);
  if (segment.count != out.count) return Status::count_mismatch;
  return into == Into::add ? segment.codec.decode_add(segment.payload, segment.dtype, out)
                           : segment.codec.decode(segment.payload, segment.dtype, out);
}

Status decode_whole(std::span<const std::byte> bytes, TensorView out, Into into) noexcept {
  FrameReader frame(bytes);
  if (frame.status() == Status::ok && frame.segment_count() != 1) return Status::count_mismatch;
  return decode_segment(frame, 0, out, into);
}

}  // namespace

Status FrameReader::decode(std::size_t index, TensorView out) noexcept {
  return decode_segment(*this, index, out, Into::assign);
}

Status FrameReader::decode_add(std::size_t index, TensorView out) noexcept {
  return decode_segment(*this, index, out, Into::add);
}

Status decode_frame(std::span<const std::byte> bytes, TensorView out) noexcept {
  return decode_whole(bytes, out, Into::assign);
}

Status decode_add_frame(std::span<const std::byte> bytes, TensorView out) noexcept {
  return decode_whole(bytes, out, Into::add);
}

}  // namespace gradwire
