// The ways in which bad frames are bad.
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "base/checksum.h"
#include "golden_cases.h"
#include "golden_numbers.h"

namespace gradwire::golden {
namespace {

template <typename T>
void put(Bytes& bytes, std::size_t at, T value) {
  if (bytes.size() < at + sizeof(T)) bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T get(const Bytes& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// Offsets, as docs/format.md gives them.
constexpr std::size_t kSegmentAt = 24;
constexpr std::size_t kParamsAt = kSegmentAt + 2;
constexpr std::size_t kCountAt = kSegmentAt + 16;
constexpr std::size_t kPayloadBytesAt = kSegmentAt + 24;
constexpr std::size_t kPayloadAt = kSegmentAt + 32;

/// Makes both checks right again, so that what lies behind them is looked at.
Bytes sealed(Bytes frame) {
  put(frame, 8, std::uint64_t{frame.size()});
  put(frame, 20, static_cast<std::uint32_t>(checksum(std::span(frame).first(20))));
  const std::size_t body = frame.size() - 8;
  put(frame, body, checksum(std::span(frame).first(body).subspan(24)));
  return frame;
}

/// The frame, of one segment, with another payload.
Bytes with_payload(const Bytes& frame, const Bytes& payload) {
  Bytes changed(frame.begin(), frame.begin() + kPayloadAt);
  put(changed, kPayloadBytesAt, std::uint64_t{payload.size()});
  changed.insert(changed.end(), payload.begin(), payload.end());
  changed.resize((changed.size() + 7) / 8 * 8 + 8);
  return sealed(changed);
}

Bytes payload_of(const Bytes& frame) {
  const auto begin = frame.begin() + kPayloadAt;
  return {begin, begin + static_cast<std::ptrdiff_t>(get<std::uint64_t>(frame, kPayloadBytesAt))};
}

class BadCases {
 public:
  /// `change` spoils the frame; its checks stay as they were.
  void damaged(const std::string& name, Status status, Bytes frame,
               const std::function<void(Bytes&)>& change) {
    change(frame);
    cases_.push_back({name, status, frame});
  }
  /// `change` spoils the frame; its checks are made right.
  void forged(const std::string& name, Status status, Bytes frame,
              const std::function<void(Bytes&)>& change) {
    change(frame);
    cases_.push_back({name, status, sealed(frame)});
  }
  template <typename T>
  void forged_field(const std::string& name, const Bytes& frame, std::size_t at, T value,
                    Status status = Status::corrupt) {
    forged(name, status, frame, [&](Bytes& bytes) { put(bytes, at, value); });
  }
  void forged_payload(const std::string& name, const Bytes& frame,
                      const std::function<void(Bytes&)>& change) {
    Bytes payload = payload_of(frame);
    change(payload);
    cases_.push_back({name, Status::corrupt, with_payload(frame, payload)});
  }
  template <typename T>
  void forged_in_payload(const std::string& name, const Bytes& frame, std::size_t at, T value) {
    forged_payload(name, frame, [&](Bytes& payload) { put(payload, at, value); });
  }
  std::vector<BadCase> take() { return std::move(cases_); }

 private:
  std::vector<BadCase> cases_;
};

Bytes frame_of(const std::string& spec, const Floats& x) {
  return encode({"", {segment(spec, x)}});
}

void add_bad_envelopes(BadCases& bad) {
  const Bytes frame = frame_of("uniform:bits=3,bucket=4,rounding=nearest", {0.5f, 1, -1, 2.5f, 7});
  const auto cut = [](std::size_t size) { return [size](Bytes& bytes) { bytes.resize(size); }; };
  const auto flip = [](std::size_t at) {
    return [at](Bytes& bytes) { bytes[at] ^= std::byte{1}; };
  };
  bad.damaged("empty", Status::truncated, frame, cut(0));
  bad.damaged("cut_in_header", Status::truncated, frame, cut(23));
  bad.damaged("cut_after_header", Status::truncated, frame, cut(24));
  bad.damaged("cut_in_payload", Status::truncated, frame, cut(60));
  bad.damaged("cut_in_checksum", Status::truncated, frame, cut(frame.size() - 1));
  bad.damaged("flipped_magic", Status::corrupt, frame, flip(0));
  bad.damaged("flipped_version", Status::corrupt, frame, flip(4));
  bad.damaged("flipped_length", Status::corrupt, frame, flip(15));
  bad.damaged("flipped_segment_count", Status::corrupt, frame, flip(16));
  bad.damaged("flipped_header_check", Status::corrupt, frame, flip(20));
  bad.damaged("flipped_params", Status::corrupt, frame, flip(27));
  bad.damaged("flipped_payload", Status::corrupt, frame, flip(57));
  bad.damaged("flipped_padding", Status::corrupt, frame, flip(71));
  bad.damaged("flipped_checksum", Status::corrupt, frame, flip(79));
  bad.forged_field("magic", frame, 0, std::uint32_t{0x57445248});
  bad.forged_field("version_0", frame, 4, std::uint16_t{0}, Status::unsupported_version);
  bad.forged_field("version_2", frame, 4, std::uint16_t{2}, Status::unsupported_version);
  bad.forged_field("reserved", frame, 6, std::uint16_t{1});
  bad.damaged("length_31", Status::corrupt, frame, [](Bytes& bytes) {
    put(bytes, 8, std::uint64_t{31});
    put(bytes, 20, static_cast<std::uint32_t>(checksum(std::span(bytes).first(20))));
  });
  bad.forged_field("segment_too_many", frame, 16, std::uint32_t{2});
  bad.forged_field("segment_too_few", frame, 16, std::uint32_t{0});
  bad.forged_field("segments_without_end", frame, 16, ~std::uint32_t{0});
  bad.forged("bytes_behind_segments", Status::corrupt, frame,
             [](Bytes& bytes) { bytes.resize(bytes.size() + 8); });
  bad.forged_field("padding", frame, 71, std::uint8_t{1});
  bad.forged_field("payload_beyond_frame", frame, kPayloadBytesAt, std::uint64_t{17});
  bad.forged_field("payload_of_2_to_the_64", frame, kPayloadBytesAt, ~std::uint64_t{0});
  bad.forged("header_beyond_frame", Status::corrupt, frame,
             [](Bytes& bytes) { bytes.resize(kSegmentAt + 31 + 8); });
}

void add_bad_segments(BadCases& bad) {
  const Bytes uniform =
      frame_of("uniform:bits=3,bucket=4,rounding=nearest", {0.5f, 1, -1, 2.5f, 7});
  bad.forged_field("codec_9", uniform, kSegmentAt, std::uint8_t{9}, Status::unknown_codec);
  bad.forged_field("codec_255", uniform, kSegmentAt, std::uint8_t{255}, Status::unknown_codec);
  bad.forged_field("dtype_3", uniform, kSegmentAt + 1, std::uint8_t{3}, Status::unknown_codec);
  bad.forged_field("uniform_scheme", uniform, kParamsAt, std::uint8_t{1});
  bad.forged_field("uniform_0_bits", uniform, kParamsAt + 1, std::uint8_t{0});
  bad.forged_field("uniform_9_bits", uniform, kParamsAt + 1, std::uint8_t{9});
  bad.forged_field("uniform_dither", uniform, kParamsAt + 2, std::uint8_t{2});
  bad.forged_field("uniform_meta", uniform, kParamsAt + 3, std::uint8_t{2});
  bad.forged_field("uniform_bucket_0", uniform, kParamsAt + 4, std::uint32_t{0});
  bad.forged_field("uniform_bucket_too_large", uniform, kParamsAt + 4, (1u << 30) + 1);
  bad.forged_field("uniform_rest", uniform, kParamsAt + 13, std::uint8_t{1});
  bad.forged_field("uniform_count_too_large", uniform, kCountAt, std::uint64_t{6});
  bad.forged_field("uniform_count_too_small", uniform, kCountAt, std::uint64_t{4});
  bad.forged_field("uniform_count_0", uniform, kCountAt, std::uint64_t{0});
  bad.forged_payload("uniform_payload_short", uniform, [](Bytes& payload) { payload.pop_back(); });
  bad.forged_payload("uniform_payload_empty", uniform, [](Bytes& payload) { payload.clear(); });

  const Bytes none = frame_of("none", {1, 2, 3});
  bad.forged_field("none_params", none, kParamsAt + 5, std::uint8_t{1});
  bad.forged_field("none_dtype", none, kSegmentAt + 1, std::uint8_t{1});
  bad.forged_field("none_count", none, kCountAt, std::uint64_t{2});
  const Bytes fp16 = frame_of("fp16", {1, 2, 3});
  bad.forged_payload("fp16_payload_long", fp16, [](Bytes& payload) { payload.resize(8); });
  const Bytes exponential = frame_of("exponential", {1, 2, 3});
  bad.forged_field("exponential_1_bit", exponential, kParamsAt + 1, std::uint8_t{1});
  const Bytes sign = frame_of("sign", {1, 2, 3});
  bad.forged_field("sign_2_bits", sign, kParamsAt + 1, std::uint8_t{2});
  bad.forged_field("sign_stochastic", sign, kParamsAt + 2, std::uint8_t{0});
}

void add_bad_sparse_payloads(BadCases& bad) {
  const Floats x = some_large(33, 1000);
  const Bytes topk = frame_of("topk:density=0.05", x);
  bad.forged_field("topk_density_0", topk, kParamsAt, 0.0f);
  bad.forged_field("topk_density_above_1", topk, kParamsAt, 1.5f);
  bad.forged_field("topk_density_nan", topk, kParamsAt, NAN);
  bad.forged_field("topk_low_threshold_unfitted", topk, kParamsAt + 4, 1.0f);
  bad.forged_field("topk_ties_unfitted", topk, kParamsAt + 8, std::uint16_t{1});
  bad.forged_field("topk_low_ties_unfitted", topk, kParamsAt + 10, std::uint16_t{1});
  bad.forged_field("topk_select_5", topk, kParamsAt + 12, std::uint8_t{5});
  bad.forged_field("topk_values_4", topk, kParamsAt + 13, std::uint8_t{4});
  bad.forged_in_payload("topk_too_many", topk, 0, std::uint64_t{1001});
  bad.forged_in_payload("topk_one_more", topk, 0, std::uint64_t{51});
  bad.forged_in_payload("topk_one_fewer", topk, 0, std::uint64_t{49});
  bad.forged_in_payload("topk_none", topk, 0, std::uint64_t{0});
  bad.forged_in_payload("topk_width_57", topk, 8, std::uint8_t{57});
  bad.forged_in_payload("topk_width_254", topk, 8, std::uint8_t{254});
  bad.forged_payload("topk_half_header", topk, [](Bytes& payload) { payload.resize(7); });
  bad.forged_payload("topk_no_group", topk, [](Bytes& payload) { payload.resize(8); });
  bad.forged_payload("topk_no_gaps", topk, [](Bytes& payload) { payload.resize(9); });
  bad.forged_payload("topk_byte_missing", topk, [](Bytes& payload) { payload.pop_back(); });
  bad.forged_payload("topk_byte_behind", topk,
                     [](Bytes& payload) { payload.push_back(std::byte{0}); });
  bad.forged_field("topk_place_beyond_count", topk, kCountAt, std::uint64_t{500});
  bad.forged_payload("topk_no_one", topk, [](Bytes& payload) {
    std::fill(payload.begin() + 9, payload.end(), std::byte{0});
  });
  const Bytes fitted = frame_of("topk:threshold=1,values=int8", {3, 2, 0, 1});
  bad.forged_field("topk_threshold_nan", fitted, kParamsAt, NAN);
  bad.forged_field("topk_threshold_infinite", fitted, kParamsAt, kInfinity);
  bad.forged_field("topk_threshold_negative", fitted, kParamsAt, -0.0f);
  bad.forged_field("topk_low_threshold_of_both", fitted, kParamsAt + 4, 1.0f);
  bad.forged_in_payload("topk_int8_floats_missing", fitted, payload_of(fitted).size() - 6, NAN);
  const Bytes all = frame_of("topk:threshold=0,values=mean", {3, 2, 1});
  bad.forged_field("topk_no_gaps_beyond_count", all, kCountAt, std::uint64_t{2});

  const Bytes randomk = frame_of("randomk:density=0.1", with(x, {{77, NAN}}));
  bad.forged_field("randomk_density_0", randomk, kParamsAt, 0.0f);
  bad.forged_field("randomk_density_nan", randomk, kParamsAt, NAN);
  bad.forged_field("randomk_scale_2", randomk, kParamsAt + 4, std::uint32_t{2});
  bad.forged_field("randomk_rest", randomk, kParamsAt + 13, std::uint8_t{1});
  bad.forged_in_payload("randomk_first_element", randomk, 8, std::uint64_t{64});
  bad.forged_payload("randomk_half_header", randomk, [](Bytes& payload) { payload.resize(15); });
  bad.forged_payload("randomk_no_numbers", randomk, [](Bytes& payload) { payload.resize(16); });
  bad.forged_payload("randomk_byte_missing", randomk, [](Bytes& payload) { payload.pop_back(); });
  bad.forged_payload("randomk_byte_behind", randomk,
                     [](Bytes& payload) { payload.push_back(std::byte{0}); });
}

void add_bad_grid_payloads(BadCases& bad) {
  const Bytes packed = frame_of("grid", bells(1, 200));
  bad.forged_field("grid_amount_0", packed, kParamsAt, 0.0f);
  bad.forged_field("grid_amount_nan", packed, kParamsAt, NAN);
  bad.forged_field("grid_locality_above_1", packed, kParamsAt + 4, 1.5f);
  bad.forged_field("grid_locality_nan", packed, kParamsAt + 4, NAN);
  bad.forged_field("grid_rms_negative", packed, kParamsAt + 8, -1.0f);
  bad.forged_field("grid_rms_infinite", packed, kParamsAt + 8, kInfinity);
  bad.forged_field("grid_rounding_3", packed, kParamsAt + 12, std::uint8_t{3});
  bad.forged_field("grid_target_2", packed, kParamsAt + 13, std::uint8_t{2});
  bad.forged_in_payload("grid_base_nan", packed, 0, NAN);
  bad.forged_in_payload("grid_base_infinite", packed, 0, kInfinity);
  bad.forged_in_payload("grid_base_negative", packed, 0, -1.0f);
  bad.forged_in_payload("grid_ratio_below_1", packed, 4, 0.99f);
  bad.forged_in_payload("grid_ratio_too_large", packed, 4, 1.5f);
  bad.forged_in_payload("grid_ratio_nan", packed, 4, NAN);
  bad.forged_in_payload("grid_mode_3", packed, 8, std::uint8_t{3});
  bad.forged_payload("grid_empty", packed, [](Bytes& payload) { payload.clear(); });
  bad.forged_payload("grid_half_header", packed, [](Bytes& payload) { payload.resize(7); });
  bad.forged_payload("grid_no_chunk", packed, [](Bytes& payload) { payload.resize(8); });
  bad.forged_payload("grid_byte_behind", packed,
                     [](Bytes& payload) { payload.push_back(std::byte{0}); });
  bad.forged_field("grid_block_missing", packed, kCountAt, std::uint64_t{300});
  bad.forged_field("grid_chunk_missing", packed, kCountAt, std::uint64_t{70000});

  // 5 bytes of chunk header, 2 scales, then the first block's width.
  bad.forged_in_payload("packed_scale_41", packed, 13, std::int8_t{41});
  bad.forged_in_payload("packed_scale_minus_61", packed, 14, std::int8_t{-61});
  bad.forged_in_payload("packed_width_9", packed, 15, std::uint8_t{9});
  bad.forged_in_payload("packed_width_31", packed, 15, std::uint8_t{31});
  bad.forged_in_payload("packed_width_32", packed, 15, std::uint8_t{32});
  bad.forged_in_payload("packed_width_0", packed, 15, std::uint8_t{0});
  const auto length = get<std::uint32_t>(payload_of(packed), 9);
  bad.forged_in_payload("packed_length_short", packed, 9, length - 1);
  bad.forged_in_payload("packed_length_long", packed, 9, length + 1);
  bad.forged_in_payload("packed_length_1", packed, 9, std::uint32_t{1});
  bad.forged_payload("packed_no_length", packed, [](Bytes& payload) { payload.resize(10); });

  const Bytes dither = frame_of("grid:rounding=dither", bells(2, 200));
  bad.forged_in_payload("dither_first_element", dither, 16, std::uint64_t{64});
  bad.forged_payload("dither_half_header", dither, [](Bytes& payload) { payload.resize(23); });
}

void add_bad_coded_chunks(BadCases& bad) {
  // Escapes, low bits and raw blocks, so that every part of the chunk has bytes.
  Floats x = with(bells(3, 3000), {{0, NAN}, {500, 9.0f}, {501, -200.0f}});
  for (std::size_t i = 1280; i < 1536; ++i) x[i] = 1e-6f;
  const Bytes frame = frame_of("grid:step=0.25", x);
  const Bytes payload = payload_of(frame);
  constexpr std::size_t kChunkAt = 8;
  constexpr std::size_t kNumbersAt = kChunkAt + 16;
  const auto block_bytes = get<std::uint16_t>(payload, kChunkAt + 6);
  const auto number_bytes = get<std::uint32_t>(payload, kChunkAt + 8);
  const auto word_count = get<std::uint32_t>(payload, kChunkAt + 12);
  const std::size_t blocks_at = kNumbersAt + number_bytes;
  const std::size_t states_at = blocks_at + block_bytes;
  const std::size_t words_at = states_at + 128;

  bad.forged_in_payload("coded_shape_8", frame, kChunkAt + 1, std::uint8_t{8});
  bad.forged_in_payload("coded_class_table_16", frame, kChunkAt + 2, std::uint8_t{16});
  bad.forged_in_payload("coded_scale_table_16", frame, kChunkAt + 3, std::uint8_t{16});
  bad.forged_in_payload("coded_class_reference", frame, kChunkAt + 4, std::int8_t{-128});
  bad.forged_in_payload("coded_scale_reference", frame, kChunkAt + 5, std::int8_t{126});
  bad.forged_in_payload("coded_state_too_small", frame, states_at + 124,
                        std::uint32_t{(1u << 15) - 1});
  bad.forged_in_payload("coded_state_too_large", frame, states_at, std::uint32_t{1u << 31});
  bad.forged_in_payload("coded_state_largest", frame, states_at + 4, ~std::uint32_t{0});
  bad.forged_in_payload("coded_class_escape_0", frame, blocks_at, std::int8_t{0});
  bad.forged_in_payload("coded_class_escape_46", frame, blocks_at, std::int8_t{46});
  bad.forged_in_payload("coded_class_escape_negative", frame, blocks_at, std::int8_t{-1});
  bad.forged_in_payload("coded_scale_escape_41", frame, states_at - 1, std::int8_t{41});
  bad.forged_in_payload(
      "coded_last_word", frame, words_at + 2 * word_count - 2,
      static_cast<std::uint16_t>(get<std::uint16_t>(payload, words_at + 2 * word_count - 2) ^ 1));
  bad.forged_in_payload("coded_number_bytes_huge", frame, kChunkAt + 8, ~std::uint32_t{0});
  bad.forged_in_payload("coded_block_bytes_huge", frame, kChunkAt + 6, std::uint16_t{0xffff});
  bad.forged_in_payload("coded_words_huge", frame, kChunkAt + 12, ~std::uint32_t{0});
  bad.forged_payload("coded_words_run_out", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 12, word_count - 1);
    bytes.resize(bytes.size() - 2);
  });
  bad.forged_payload("coded_no_words", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 12, std::uint32_t{0});
    bytes.resize(words_at);
  });
  bad.forged_payload("coded_word_left_over", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 12, word_count + 1);
    bytes.resize(bytes.size() + 2);
  });
  bad.forged_payload("coded_number_byte_missing", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 8, number_bytes - 1);
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(blocks_at) - 1);
  });
  bad.forged_payload("coded_number_byte_left_over", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 8, number_bytes + 1);
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(blocks_at), std::byte{0});
  });
  bad.forged_payload("coded_block_byte_missing", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 6, static_cast<std::uint16_t>(block_bytes - 1));
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(states_at) - 1);
  });
  bad.forged_payload("coded_block_byte_left_over", frame, [&](Bytes& bytes) {
    put(bytes, kChunkAt + 6, static_cast<std::uint16_t>(block_bytes + 1));
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(states_at), std::byte{0});
  });
  bad.forged_payload("coded_half_header", frame,
                     [&](Bytes& bytes) { bytes.resize(kChunkAt + 15); });
  bad.forged_payload("coded_half_states", frame,
                     [&](Bytes& bytes) { bytes.resize(states_at + 64); });
}

}  // namespace

std::vector<BadCase> bad_cases() {
  BadCases bad;
  add_bad_envelopes(bad);
  add_bad_segments(bad);
  add_bad_grid_payloads(bad);
  add_bad_sparse_payloads(bad);
  add_bad_coded_chunks(bad);
  return bad.take();
}

}  // namespace gradwire::golden
