#include "gradwire/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"
#include "codec/frame_test_edits.h"

namespace gradwire::test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes make_frame(std::span<const Segment> segments) {
  Bytes bytes(max_frame_bytes(segments));
  const Encoded done = encode_frame(segments, bytes);
  EXPECT_EQ(done.status, Status::ok);
  EXPECT_LE(done.bytes, bytes.size());
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(done.bytes)};
}

Bytes make_frame(const std::string& spec, const Tensor& x, const EncodeOptions& options = {}) {
  const Segment segment{Codec::parse(spec), x.view(), options};
  return make_frame({&segment, 1});
}

/// A small tensor whose grid payload has every kind of block: zeros, coded, escapes, low bits, raw.
Tensor small_tensor(std::size_t count, Dtype dtype = Dtype::f32) {
  std::vector<float> x = gaussian(count, 3, 0.01f);
  for (std::size_t i = 128; i < std::min<std::size_t>(count, 256); ++i) x[i] = 0;
  if (count > 300) x[300] = 5;
  if (count > 400) x[400] = NAN;
  return {x, dtype};
}

Bytes two_segments() {
  const Tensor a = small_tensor(40), b = small_tensor(3, Dtype::bf16);
  const Segment segments[] = {{Codec::parse("uniform"), a.view(), {}},
                              {Codec::parse("none"), b.view(), {}}};
  return make_frame(segments);
}

std::vector<Bytes> small_frames() {
  std::vector<Bytes> frames = {two_segments(), make_frame({})};
  for (const std::string& spec : typical_specs())
    frames.push_back(make_frame(spec, small_tensor(37)));
  frames.push_back(make_frame("grid:step=0.1", small_tensor(600)));
  frames.push_back(make_frame("grid:step=0.1,rounding=dither", small_tensor(2500)));
  return frames;
}

// ---------------------------------------------------------------------------------------------
// Good frames

TEST(Frame, one_segment_decodes_like_its_payload) {
  for (const std::string& spec : every_spec()) {
    for (const Dtype dtype : kDtypes) {
      const Codec codec = Codec::parse(spec);
      const Tensor x(gradient_like(777, 4), dtype);
      const EncodeOptions options{.random = {.seed = 1, .rank = 3}, .first_element = 256};
      const Bytes frame = make_frame(spec, x, options);
      Tensor decoded(x.count(), dtype);
      ASSERT_EQ(decode_frame(frame, decoded.view()), Status::ok) << spec;
      const Bytes payload = encode(codec, x, options);
      EXPECT_TRUE(decoded.bytes() == decode(codec, payload, dtype, x.count(), dtype).bytes())
          << spec;
      Tensor sum = x, expected = x;
      ASSERT_EQ(decode_add_frame(frame, sum.view()), Status::ok) << spec;
      ASSERT_EQ(codec.decode_add(payload, dtype, expected.view()), Status::ok);
      EXPECT_TRUE(sum.bytes() == expected.bytes()) << spec;
    }
  }
}

TEST(Frame, segments_of_any_codec_dtype_and_count_travel_together) {
  std::vector<Tensor> tensors;
  std::vector<Segment> segments;
  for (const std::string& spec : typical_specs()) {
    for (const std::size_t count : {0, 1, 129, 3000}) {
      tensors.emplace_back(gradient_like(count, count), kDtypes[tensors.size() % 3]);
      segments.push_back({Codec::parse(spec), {}, {.random = {.tensor = tensors.size()}}});
    }
  }
  for (std::size_t i = 0; i < segments.size(); ++i)
    segments[i].values = std::as_const(tensors[i]).view();
  const Bytes bytes = make_frame(segments);
  FrameReader frame(bytes);
  ASSERT_EQ(frame.status(), Status::ok);
  ASSERT_EQ(frame.segment_count(), segments.size());
  EXPECT_EQ(frame.size(), bytes.size());

  const auto check_one = [&](std::size_t i) {
    const SegmentView view = frame.segment(i);
    EXPECT_EQ(view.codec, segments[i].codec);
    EXPECT_EQ(view.dtype, tensors[i].dtype());
    ASSERT_EQ(view.count, tensors[i].count());
    EXPECT_TRUE(
        std::ranges::equal(view.payload, encode(view.codec, tensors[i], segments[i].options)));
    Tensor out(view.count, Dtype::f32);
    EXPECT_EQ(frame.decode(i, out.view()), Status::ok);
    EXPECT_TRUE(out.bytes() == decode(view.codec, view.payload, view.dtype, view.count).bytes());
  };
  for (std::size_t i = 0; i < segments.size(); ++i) check_one(i);
  for (std::size_t i = segments.size(); i-- > 0;) check_one(i);

  std::size_t total = kFrameOverheadBytes;
  for (std::size_t i = 0; i < segments.size(); ++i) total += frame.segment(i).bytes;
  EXPECT_EQ(total, bytes.size());
}

TEST(Frame, ones_own_is_read_without_a_look_at_its_checksum) {
  for (Bytes bytes : small_frames()) {
    FrameReader checked(bytes);
    ASSERT_EQ(checked.status(), Status::ok);
    bytes.back() ^= std::byte{1};
    ASSERT_EQ(FrameReader(bytes).status(), Status::corrupt);
    FrameReader own = FrameReader::own(bytes);
    EXPECT_EQ(own.status(), Status::ok);
    EXPECT_EQ(own.size(), bytes.size());
    ASSERT_EQ(own.segment_count(), checked.segment_count());
    for (std::size_t i = 0; i < own.segment_count(); ++i) {
      Tensor expected(checked.segment(i).count, Dtype::f32);
      Tensor found(checked.segment(i).count, Dtype::f32);
      EXPECT_EQ(checked.decode(i, expected.view()), Status::ok);
      EXPECT_EQ(own.decode(i, found.view()), Status::ok);
      EXPECT_TRUE(found.bytes() == expected.bytes());
    }
  }
}

TEST(Frame, no_segments_make_a_frame) {
  const Bytes bytes = make_frame({});
  EXPECT_EQ(FrameReader(bytes).status(), Status::ok);
  EXPECT_EQ(FrameReader(bytes).segment_count(), 0u);
}

TEST(Frame, bytes_behind_a_frame_are_ignored) {
  for (Bytes bytes : small_frames()) {
    const std::size_t size = bytes.size();
    bytes.insert(bytes.end(), 77, std::byte{0xee});
    EXPECT_EQ(FrameReader(bytes).status(), Status::ok);
    EXPECT_EQ(FrameReader(bytes).size(), size);
  }
}

TEST(Frame, same_input_gives_the_same_bytes) {
  for (const std::string& spec : typical_specs()) {
    const Tensor x(gradient_like(3000), Dtype::f32);
    EXPECT_TRUE(make_frame(spec, x) == make_frame(spec, x)) << spec;
  }
}

// ---------------------------------------------------------------------------------------------
// Wrong calls

TEST(Frame, wrong_counts_are_refused) {
  const Bytes bytes = make_frame("uniform", small_tensor(40));
  Tensor fewer(39, Dtype::f32), more(41, Dtype::f32), right(40, Dtype::f32);
  EXPECT_EQ(decode_frame(bytes, fewer.view()), Status::count_mismatch);
  EXPECT_EQ(decode_add_frame(bytes, more.view()), Status::count_mismatch);
  EXPECT_EQ(FrameReader(bytes).decode(1, right.view()), Status::count_mismatch)
      << "no such segment";
  EXPECT_EQ(decode_frame(two_segments(), right.view()), Status::count_mismatch) << "two segments";
  EXPECT_EQ(decode_frame(make_frame({}), right.view()), Status::count_mismatch) << "none";
}

TEST(Frame, wrong_buffers_and_offsets_are_refused) {
  const Tensor x = small_tensor(40);
  const Codec codec = Codec::parse("uniform");
  const Segment good{codec, x.view(), {}};
  Bytes small(max_frame_bytes(codec, 40) - 1);
  EXPECT_EQ(encode_frame({&good, 1}, small).status, Status::buffer_too_small);
  Bytes bytes(max_frame_bytes(codec, 40));
  const Segment misaligned{codec, x.view(), {.first_element = 64}};
  EXPECT_EQ(encode_frame({&misaligned, 1}, bytes).status, Status::invalid_argument);
  EXPECT_EQ(encode_frame({&misaligned, 1}, bytes).bytes, 0u);
  const Segment null{codec, {nullptr, 40, Dtype::f32}, {}};
  EXPECT_EQ(encode_frame({&null, 1}, bytes).status, Status::invalid_argument);
}

// ---------------------------------------------------------------------------------------------
// Damage

/// Decodes into marked outputs of all sizes that the frame could be for; none may change.
Status decode_untouched(std::span<const std::byte> bytes) {
  FrameReader frame(bytes);
  for (const std::size_t count : {3u, 37u, 40u}) {
    Tensor out(std::vector<float>(count, 0.75f), Dtype::f32);
    const Bytes before = out.bytes();
    EXPECT_NE(decode_frame(bytes, out.view()), Status::ok);
    EXPECT_NE(decode_add_frame(bytes, out.view()), Status::ok);
    EXPECT_NE(frame.decode(0, out.view()), Status::ok);
    EXPECT_TRUE(out.bytes() == before) << "a damaged frame changed the output";
  }
  return frame.status();
}

TEST(DamagedFrame, any_flipped_bit_is_corrupt) {
  for (Bytes bytes : small_frames()) {
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_EQ(decode_untouched(bytes), Status::corrupt)
          << "bit " << bit << " of " << bytes.size() * 8;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(DamagedFrame, any_truncation_is_truncated) {
  for (const Bytes& bytes : small_frames()) {
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      ASSERT_EQ(decode_untouched(cut), Status::truncated) << length << " of " << bytes.size();
    }
  }
}

TEST(DamagedFrame, random_bytes_are_refused) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes(random() % 200);
    for (std::byte& byte : bytes) byte = std::byte(random());
    const Status status = decode_untouched(bytes);
    ASSERT_TRUE(status == Status::corrupt || status == Status::truncated);
  }
}

TEST(UnsealedFrame, only_readers_that_ask_for_it_decode_it) {
  const std::vector<float> x{1, 2, 3};
  const Segment segment{Codec::parse("none"), {x.data(), x.size()}, {}};
  std::vector<std::byte> bytes(max_frame_bytes({&segment, 1}));
  const Encoded encoded = encode_frame({&segment, 1}, bytes, Seal::none);
  ASSERT_EQ(encoded.status, Status::ok);
  bytes.resize(encoded.bytes);
  EXPECT_EQ(FrameReader(bytes).status(), Status::corrupt);
  FrameReader frame(bytes, Seal::none);
  ASSERT_EQ(frame.status(), Status::ok);
  std::vector<float> y(3);
  EXPECT_EQ(frame.decode(0, {y.data(), y.size()}), Status::ok);
  EXPECT_EQ(y, x);
}

TEST(UnsealedFrame, a_sealed_one_is_as_good_and_checked_all_the_same) {
  const std::vector<float> x{1, 2, 3};
  const Segment segment{Codec::parse("none"), {x.data(), x.size()}, {}};
  std::vector<std::byte> bytes(max_frame_bytes({&segment, 1}));
  bytes.resize(encode_frame({&segment, 1}, bytes).bytes);
  EXPECT_EQ(FrameReader(bytes, Seal::none).status(), Status::ok);
  bytes[60] ^= std::byte{1};
  EXPECT_EQ(FrameReader(bytes, Seal::none).status(), Status::corrupt);
}

// ---------------------------------------------------------------------------------------------
// Hostile frames: the checksums are right, what they cover is not

TEST(HostileFrame, header_fields_out_of_range_are_refused) {
  const Bytes good = make_frame("uniform", small_tensor(40));
  const auto status = [](const Bytes& bytes) { return FrameReader(bytes).status(); };
  ASSERT_EQ(status(good), Status::ok);
  EXPECT_EQ(status(with(good, kVersionAt, std::uint16_t{2})), Status::unsupported_version);
  EXPECT_EQ(status(with(good, kReservedAt, std::uint16_t{1})), Status::corrupt);
  EXPECT_EQ(status(with(good, kSegmentCountAt, std::uint32_t{0})), Status::corrupt);
  EXPECT_EQ(status(with(good, kSegmentCountAt, std::uint32_t{2})), Status::corrupt);
  EXPECT_EQ(status(with(good, kSegmentCountAt, ~std::uint32_t{0})), Status::corrupt);
  EXPECT_EQ(status(with(good, kCodecAt, std::uint8_t{200})), Status::unknown_codec);
  EXPECT_EQ(status(with(good, kDtypeAt, std::uint8_t{3})), Status::unknown_codec);
  EXPECT_EQ(status(with(good, kParamsAt + 13, std::uint8_t{1})), Status::corrupt)
      << "unused setting";
  for (const std::uint64_t length : {0ull, 31ull, 32ull, ~0ull, ~0ull - 7, 1ull << 63}) {
    EXPECT_NE(status(with(good, kLengthAt, length)), Status::ok) << "frame of " << length;
    EXPECT_EQ(status(with(good, kPayloadBytesAt, length)), Status::corrupt)
        << "payload of " << length;
  }
}

TEST(HostileFrame, padding_that_is_not_zero_is_refused) {
  const Bytes good = make_frame("bf16", small_tensor(5));  // 10 bytes, 6 of padding
  EXPECT_EQ(FrameReader(with(good, kPayloadAt + 10, std::byte{1})).status(), Status::corrupt);
  EXPECT_EQ(FrameReader(with(good, kPayloadAt + 15, std::byte{1})).status(), Status::corrupt);
}

TEST(HostileFrame, count_that_the_payload_does_not_have_is_refused) {
  for (const std::string& spec : typical_specs()) {
    const Bytes good = make_frame(spec, small_tensor(300));
    for (const std::uint64_t count : {0, 1, 150, 290, 310, 100'000}) {
      Tensor out(count, Dtype::f32);
      const Bytes bytes = with(good, kCountAt, count);
      // Payloads of some may well decode as another count's numbers; the rest know their size.
      const Status status = decode_frame(bytes, out.view());
      EXPECT_TRUE(status == Status::corrupt || spec.starts_with("grid") ||
                  (spec.starts_with("topk") && count > 1) ||
                  (spec.starts_with("randomk") && count > 150))
          << spec << " " << count;
    }
  }
}

/// Decodes whatever the frame says it holds into an output of just that size, guarded on both
/// sides.
void decode_guarded(const Bytes& bytes, Dtype dtype) {
  FrameReader frame(bytes);
  if (frame.status() != Status::ok) return;
  for (std::size_t i = 0; i < frame.segment_count(); ++i) {
    const std::size_t count = frame.segment(i).count;
    if (count > 1 << 20) continue;
    constexpr std::size_t kGuard = 64;
    const std::size_t words = (count * size_of(dtype) + 3) / 4;
    std::vector<std::uint32_t> held(words + 2 * kGuard, 0x55555555);
    const TensorView out{held.data() + kGuard, count, dtype};
    frame.decode(i, out);
    frame.decode_add(i, out);
    const auto guard = [](std::uint32_t word) { return word == 0x55555555; };
    EXPECT_TRUE(std::all_of(held.begin(), held.begin() + kGuard, guard));
    EXPECT_TRUE(std::all_of(held.end() - kGuard, held.end(), guard));
  }
}

TEST(HostileFrame, any_flipped_bit_under_right_checksums_is_harmless) {
  on_every_isa([] {
    for (const Bytes& good : small_frames()) {
      const std::size_t covered = good.size() - kChecksumBytes;
      const std::size_t stride = covered > 200 ? 13 : 1;  // long payloads: some bit of most bytes
      for (std::size_t bit = 0; bit < 8 * covered; bit += stride) {
        Bytes bytes = good;
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        seal(bytes);
        decode_guarded(bytes, kDtypes[bit % 3]);
      }
    }
  });
}

TEST(HostileFrame, many_random_changes_are_harmless) {
  std::mt19937 random(2);
  std::vector<Bytes> frames = small_frames();
  for (const char* spec :
       {"grid:step=0.1", "grid:step=0.01,locality=0", "grid:step=0.5,rounding=dither"}) {
    frames.push_back(make_frame(spec, small_tensor(20'000)));
  }
  on_every_isa([&] {
    for (int round = 0; round < 1500; ++round) {
      Bytes bytes = frames[random() % frames.size()];
      if (bytes.size() <= kPayloadAt + kChecksumBytes) continue;
      const std::size_t payload = bytes.size() - kPayloadAt - kChecksumBytes;
      for (unsigned change = 0; change <= random() % 8; ++change) {
        // Headers stand at the front of a payload: half of the changes go there.
        const std::size_t range = random() % 2 == 0 ? std::min<std::size_t>(payload, 48) : payload;
        bytes[kPayloadAt + random() % range] = std::byte(random());
      }
      seal(bytes);
      decode_guarded(bytes, kDtypes[round % 3]);
    }
  });
}

TEST(HostileFrame, any_truncated_payload_is_corrupt) {
  for (const std::string& spec : typical_specs()) {
    const Codec codec = Codec::parse(spec);
    const Tensor x = small_tensor(2500);
    const Bytes payload = encode(codec, x);
    for (std::size_t length = 0; length < payload.size(); length += 1 + length / 64) {
      const Bytes cut(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(length));
      Tensor out(x.count(), Dtype::f32);
      ASSERT_EQ(codec.decode(cut, Dtype::f32, out.view()), Status::corrupt)
          << spec << " " << length;
    }
    Bytes longer = payload;
    longer.push_back(std::byte{0});
    Tensor out(x.count(), Dtype::f32);
    EXPECT_EQ(codec.decode(longer, Dtype::f32, out.view()), Status::corrupt) << spec;
  }
}

}  // namespace
}  // namespace gradwire::test
