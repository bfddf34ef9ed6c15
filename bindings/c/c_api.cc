// Codecs, frames and the CPU in C: arguments are checked, the C++ interface is called, and
// exceptions stop.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "failure.h"
#include "gradwire/codec.h"
#include "gradwire/environment.h"
#include "gradwire/frame.h"
#include "gradwire/gradwire.h"
#include "gradwire/isa.h"
#include "gradwire/random.h"
#include "gradwire/tensor.h"
#include "tensor/into.h"

namespace gradwire::c_api {
namespace {

// -------------------------------------------------------------------------------------------------
// Arguments

constexpr std::string_view kNoCodec = "codec is null; make one with gradwire_codec_create";
constexpr std::string_view kNoRandom =
    "random is null; pass a gradwire_random_key, of zeros if randomness does not matter";
constexpr std::string_view kNoWritten = "written is null; it receives the frame's length";
constexpr std::string_view kNoFrame = "frame is null; pass the frame's bytes or a buffer for them";

std::span<const std::byte> bytes_of(const void* frame, std::size_t bytes) noexcept {
  return {static_cast<const std::byte*>(frame), bytes};
}

// -------------------------------------------------------------------------------------------------
// Encoding

Segment segment_of(const gradwire_segment& from) noexcept {
  const gradwire_random_key& key = from.random;
  return {.codec = from.codec->codec,
          .values = {from.data, from.count, static_cast<Dtype>(from.dtype)},
          .options = {.random = {key.seed, key.step, key.tensor, key.rank},
                      .first_element = from.first_element,
                      .turn = key.step}};
}

std::string_view fault_of(const gradwire_segment& segment) noexcept {
  if (segment.codec == nullptr) return kNoCodec;
  return fault_of_numbers(segment.data, segment.count, segment.dtype);
}

int encode(std::span<const Segment> segments, void* frame, std::size_t capacity,
           std::size_t* written) noexcept {
  if (written == nullptr) return refuse(kNoWritten);
  if (frame == nullptr) return refuse(kNoFrame);
  const Encoded done = encode_frame(segments, {static_cast<std::byte*>(frame), capacity});
  if (done.status == Status::ok) *written = done.bytes;
  return report(done.status);
}

int encode_all(std::span<const gradwire_segment> segments, void* frame, std::size_t capacity,
               std::size_t* written) {
  constexpr std::size_t kSegmentsWithoutAllocation = 64;
  alignas(Segment) std::array<std::byte, kSegmentsWithoutAllocation * sizeof(Segment)> storage;
  std::pmr::monotonic_buffer_resource memory(storage.data(), storage.size());
  std::pmr::vector<Segment> converted(&memory);
  converted.reserve(segments.size());
  for (const gradwire_segment& segment : segments) {
    const std::string_view fault = fault_of(segment);
    if (!fault.empty()) return refuse(fault);
    converted.push_back(segment_of(segment));
  }
  return encode(converted, frame, capacity, written);
}

// -------------------------------------------------------------------------------------------------
// Decoding

TensorView view_of(const gradwire_output& output) noexcept {
  return {output.data, output.count, static_cast<Dtype>(output.dtype)};
}

/// Everything that can be said before an output is touched.
int check_outputs(FrameReader& frame, std::span<const gradwire_output> outputs) noexcept {
  if (frame.status() != Status::ok) return report(frame.status());
  if (frame.segment_count() != outputs.size()) return report(Status::count_mismatch);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const gradwire_output& output = outputs[i];
    const std::string_view fault = fault_of_numbers(output.data, output.count, output.dtype);
    if (!fault.empty()) return refuse(fault);
    if (frame.segment(i).count != output.count) return report(Status::count_mismatch);
  }
  return kOk;
}

int decode_all(const void* frame, std::size_t bytes, std::span<const gradwire_output> outputs,
               Into into) noexcept {
  if (frame == nullptr) return refuse(kNoFrame);
  FrameReader reader(bytes_of(frame, bytes));
  const int code = check_outputs(reader, outputs);
  if (code != kOk) return code;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView out = view_of(outputs[i]);
    const Status status = into == Into::add ? reader.decode_add(i, out) : reader.decode(i, out);
    if (status != Status::ok) return report(status);
  }
  return kOk;
}

int decode_segments(const void* frame, std::size_t bytes, const gradwire_output* outputs,
                    std::size_t output_count, Into into) noexcept {
  if (outputs == nullptr && output_count != 0) return refuse("outputs is null");
  return decode_all(frame, bytes, {outputs, output_count}, into);
}

// -------------------------------------------------------------------------------------------------
// Inspecting

gradwire_segment_info info_of(const SegmentView& segment) {
  gradwire_segment_info info{};
  const std::string spec = segment.codec.spec();
  spec.copy(info.spec, sizeof(info.spec) - 1);
  info.dtype = static_cast<int>(segment.dtype);
  info.count = segment.count;
  info.payload_bytes = segment.payload.size();
  return info;
}

const char* at(const std::vector<std::string>& texts, std::size_t index) noexcept {
  return index < texts.size() ? texts[index].c_str() : nullptr;
}

const std::vector<std::string>& isa_names() {
  static const std::vector<std::string> kNames = available_isas();
  return kNames;
}

}  // namespace
}  // namespace gradwire::c_api

using namespace gradwire;         // NOLINT
using namespace gradwire::c_api;  // NOLINT: the functions below are the file's subject

const char* gradwire_version(void) { return GRADWIRE_VERSION; }

// Codecs

int gradwire_codec_create(const char* spec, gradwire_codec** codec) {
  return guarded([&] {
    if (spec == nullptr) return refuse("spec is null; pass a text such as \"uniform:bits=4\"");
    if (codec == nullptr) return refuse("codec is null; it receives the new codec");
    *codec = new gradwire_codec(Codec::parse(spec));
    return kOk;
  });
}

int gradwire_codec_fit(const gradwire_codec* codec, const void* data, size_t count, int dtype,
                       gradwire_codec** fitted) {
  return guarded([&] {
    if (codec == nullptr) return refuse(kNoCodec);
    if (fitted == nullptr) return refuse("fitted is null; it receives the new codec");
    const std::string_view fault = fault_of_numbers(data, count, dtype);
    if (!fault.empty()) return refuse(fault);
    *fitted = new gradwire_codec(codec->codec.fit({data, count, static_cast<Dtype>(dtype)}));
    return kOk;
  });
}

void gradwire_codec_destroy(gradwire_codec* codec) { delete codec; }

const char* gradwire_codec_spec(const gradwire_codec* codec) {
  return codec == nullptr ? "" : codec->spec.c_str();
}

const char* gradwire_codec_list(size_t index) {
  const char* spec = nullptr;
  guarded([&] {
    static const std::vector<std::string> kSpecs = list_codecs();
    spec = at(kSpecs, index);
  });
  return spec;
}

uint32_t gradwire_codec_traits(const gradwire_codec* codec) {
  if (codec == nullptr) return 0;
  const Traits traits = codec->codec.traits();
  uint32_t sum = 0;
  if (traits.lossless) sum |= GRADWIRE_LOSSLESS;
  if (traits.unbiased) sum |= GRADWIRE_UNBIASED;
  if (traits.fixed_size) sum |= GRADWIRE_FIXED_SIZE;
  if (traits.keeps_zeros) sum |= GRADWIRE_KEEPS_ZEROS;
  if (traits.sparse) sum |= GRADWIRE_SPARSE;
  return sum;
}

size_t gradwire_codec_max_frame_bytes(const gradwire_codec* codec, size_t count) {
  if (codec == nullptr) return 0;
  return count > kMaxCount ? SIZE_MAX : max_frame_bytes(codec->codec, count);
}

// Frames of one tensor

int gradwire_frame_encode(const gradwire_codec* codec, const void* data, size_t count, int dtype,
                          const gradwire_random_key* random, uint64_t first_element, void* frame,
                          size_t capacity, size_t* written) {
  if (random == nullptr) return refuse(kNoRandom);
  const gradwire_segment segment = {codec, data, count, dtype, *random, first_element};
  const std::string_view fault = fault_of(segment);
  if (!fault.empty()) return refuse(fault);
  const Segment converted = segment_of(segment);
  return encode({&converted, 1}, frame, capacity, written);
}

int gradwire_frame_decode(const void* frame, size_t bytes, void* out, size_t count, int dtype) {
  const gradwire_output output = {out, count, dtype};
  return decode_all(frame, bytes, {&output, 1}, Into::assign);
}

int gradwire_frame_decode_add(const void* frame, size_t bytes, void* out, size_t count, int dtype) {
  const gradwire_output output = {out, count, dtype};
  return decode_all(frame, bytes, {&output, 1}, Into::add);
}

// Frames of any number of tensors

size_t gradwire_segments_max_frame_bytes(const gradwire_segment* segments, size_t segment_count) {
  if (segments == nullptr) segment_count = 0;
  size_t bytes = max_frame_bytes(std::span<const Segment>{});
  for (size_t i = 0; i < segment_count; ++i) {
    const size_t more = gradwire_codec_max_frame_bytes(segments[i].codec, segments[i].count);
    if (more > SIZE_MAX - bytes) return SIZE_MAX;
    bytes += more;
  }
  return bytes;
}

int gradwire_segments_encode(const gradwire_segment* segments, size_t segment_count, void* frame,
                             size_t capacity, size_t* written) {
  return guarded([&] {
    if (segments == nullptr && segment_count != 0) return refuse("segments is null");
    return encode_all({segments, segment_count}, frame, capacity, written);
  });
}

int gradwire_segments_decode(const void* frame, size_t bytes, const gradwire_output* outputs,
                             size_t output_count) {
  return decode_segments(frame, bytes, outputs, output_count, Into::assign);
}

int gradwire_segments_decode_add(const void* frame, size_t bytes, const gradwire_output* outputs,
                                 size_t output_count) {
  return decode_segments(frame, bytes, outputs, output_count, Into::add);
}

// What a frame holds

int gradwire_frame_inspect(const void* frame, size_t bytes, gradwire_segment_info* segments,
                           size_t capacity, size_t* segment_count, size_t* frame_bytes) {
  return guarded([&] {
    if (frame == nullptr) return refuse(kNoFrame);
    if (segments == nullptr && capacity != 0) return refuse("segments is null");
    if (segment_count == nullptr) return refuse("segment_count is null");
    FrameReader reader(bytes_of(frame, bytes));
    if (reader.status() != Status::ok) return report(reader.status());
    const size_t shown = std::min(capacity, reader.segment_count());
    for (size_t i = 0; i < shown; ++i) segments[i] = info_of(reader.segment(i));
    *segment_count = reader.segment_count();
    if (frame_bytes != nullptr) *frame_bytes = reader.size();
    return kOk;
  });
}

// The CPU and the environment

const char* gradwire_isa_list(size_t index) {
  const char* name = nullptr;
  guarded([&] { name = at(isa_names(), index); });
  return name;
}

const char* gradwire_isa_current(void) {
  const char* name = nullptr;
  guarded([&] {
    const std::vector<std::string>& names = isa_names();
    name = at(names, std::find(names.begin(), names.end(), current_isa()) - names.begin());
  });
  return name;
}

int gradwire_isa_use(const char* name) {
  return guarded([&] {
    if (name == nullptr) return refuse("name is null; gradwire_isa_list gives the names");
    use_isa(name);
    return kOk;
  });
}

int gradwire_configure_from_environment(void) {
  return guarded([] { configure_from_environment(); });
}
