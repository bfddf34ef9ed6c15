#include "golden_cases.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "base/checksum.h"
#include "base/random_stream.h"

namespace gradwire::golden {
namespace {

// ---------------------------------------------------------------------------------------------
// Numbers: integer arithmetic and single correctly rounded operations, so that every machine makes
// the same.

using Floats = std::vector<float>;

/// Bell-shaped, standard deviation about 1.
float bell(std::uint64_t seed, std::size_t i) {
  const std::uint64_t hash = mix64(seed * 0x9e3779b97f4a7c15u + i);
  std::int32_t sum = 0;
  for (int part = 0; part < 4; ++part)
    sum += static_cast<std::int32_t>(hash >> (16 * part) & 0xffff);
  return static_cast<float>(sum - 2 * 65535) / 37837.0f;
}

Floats bells(std::uint64_t seed, std::size_t count) {
  Floats x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = bell(seed, i);
  return x;
}

/// Every second number is twice as wide as the last: as heavy a tail as gradients have.
Floats heavy_tailed(std::uint64_t seed, std::size_t count) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = std::ldexp(x[i], std::countr_zero(mix64(seed + i) | std::uint64_t{1} << 12));
  }
  return x;
}

/// Blocks of 128 of unlike sizes, some of them zero.
Floats uneven_blocks(std::uint64_t seed, std::size_t count, int exponents) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t hash = mix64(seed + i / 128);
    const int exponent = static_cast<int>(hash % static_cast<unsigned>(exponents)) - exponents / 2;
    x[i] = hash >> 32 & 3 ? std::ldexp(x[i], exponent) : 0.0f;
  }
  return x;
}

/// A quarter, or half, of the numbers are wider than the rest: between a bell and a heavy tail.
Floats mixed_widths(std::uint64_t seed, std::size_t count, unsigned one_in, float width) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (mix64(seed + i) % one_in == 0) x[i] *= width;
  }
  return x;
}

/// Only one in `one_in` stays; the others are 0.
Floats thinned(Floats x, unsigned one_in) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (mix64(i) % one_in != 0) x[i] = 0;
  }
  return x;
}

/// Blocks of 128, each a quarter of an octave wider than the last: all classes.
Floats widening_blocks(std::uint64_t seed, std::size_t count) {
  constexpr float kQuarters[] = {1.0f, 1.1892071f, 1.4142135f, 1.6817929f};
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const int block = static_cast<int>(i / 128);
    x[i] = std::ldexp(x[i] * kQuarters[block % 4], block / 4 - 3);
  }
  return x;
}

/// Multiples of ½, mostly 0, which are whole steps under `grid:step=0.5,locality=0,rms=1`.
Floats sparse_steps(std::size_t count, std::size_t every, std::vector<int> steps) {
  Floats x(count);
  for (std::size_t i = 0, k = 0; i < count; i += every, ++k) {
    x[i] = 0.5f * static_cast<float>(steps[k % steps.size()]);
  }
  return x;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

Floats with(Floats x, const std::vector<std::pair<std::size_t, float>>& changes) {
  for (const auto& [at, value] : changes) x[at] = value;
  return x;
}

/// Buckets of 8 that are hard in one way each.
Floats hard_buckets() {
  const Floats kinds[] = {
      {0, 0, 0, 0, 0, 0, 0, 0},
      {-0.0f, 0, -0.0f, 0, 1, -1, -0.0f, 0},
      {7, 7, 7, 7, 7, 7, 7, 7},
      {1, 2, NAN, 4, 5, 6, 7, 8},
      {1, 2, 3, kInfinity, 5, 6, 7, 8},
      {1, 2, 3, 4, -kInfinity, 6, 7, 8},
      {kLargest, -kLargest, 1, -1, 0, 3e38f, -3e38f, 1e38f},
      {kLargest, kLargest, kLargest, kLargest, 3e38f, 3e38f, 3e38f, 3e38f},
      {kSmallest, -kSmallest, 0, 2 * kSmallest, 1e-40f, -1e-40f, 1e-38f, 0},
      {1e-30f, 2e-30f, 3e-30f, -4e-30f, 5e-30f, 6e-30f, 7e-30f, 8e-30f},
      {1e30f, 1e-30f, -1e30f, -1e-30f, 1, -1, 1e10f, 1e-10f},
      {1e38f, 1e-38f, 2e38f, 0, 0, 0, 0, -1e37f},
  };
  Floats x;
  for (const Floats& kind : kinds) x.insert(x.end(), kind.begin(), kind.end());
  return x;
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Floats as elements of `dtype`, by the codecs that do nothing else.
Bytes narrowed(const Floats& x, Dtype dtype) {
  if (dtype == Dtype::f32 || x.empty()) return bytes_of(x);
  const Codec codec = Codec::parse(dtype == Dtype::f16 ? "fp16" : "bf16");
  Bytes bytes(codec.max_encoded_bytes(x.size()));
  const Encoded encoded = codec.encode({x.data(), x.size(), Dtype::f32}, {}, bytes);
  bytes.resize(encoded.bytes);
  return bytes;
}

constexpr RandomKey kKey{.seed = 1, .step = 2, .tensor = 3, .rank = 4};

GoldenSegment segment(const std::string& spec, const Floats& x, Dtype dtype = Dtype::f32,
                      std::uint64_t first_element = 0) {
  return {spec, dtype, narrowed(x, dtype), {.random = kKey, .first_element = first_element}};
}

std::vector<GoldenSegment> each(const std::vector<std::string>& specs, const Floats& x,
                                Dtype dtype = Dtype::f32) {
  std::vector<GoldenSegment> segments;
  for (const std::string& spec : specs) segments.push_back(segment(spec, x, dtype));
  return segments;
}

/// All 16-bit patterns that are not ordinary numbers, and some that are.
Bytes special_halves() {
  std::vector<std::uint16_t> values;
  for (const int sign : {0, 0x8000}) {
    for (const int bits : {0, 1, 2, 0x7f, 0x80, 0x3ff, 0x400, 0x3c00, 0x3f80, 0x7bff, 0x7c00,
                           0x7c01, 0x7dff, 0x7e00, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff}) {
      values.push_back(static_cast<std::uint16_t>(sign | bits));
    }
  }
  return bytes_of(values);
}

std::vector<std::string> specs_with_bits(const std::string& name, int low, int high,
                                         const std::string& rest) {
  std::vector<std::string> specs;
  for (int bits = low; bits <= high; ++bits)
    specs.push_back(name + ":bits=" + std::to_string(bits) + rest);
  return specs;
}

const std::vector<std::string> kAllCodecs = {"none",        "fp16", "bf16", "uniform",
                                             "exponential", "sign", "grid", "grid:rounding=dither"};

void add_general_cases(std::vector<GoldenCase>& cases) {
  cases.push_back({"no_segments", {}});
  cases.push_back({"no_elements", each(kAllCodecs, {})});
  cases.push_back({"one_element", each(kAllCodecs, {-1.5f})});
  cases.push_back({"one_zero", each(kAllCodecs, {0.0f})});
  cases.push_back({"one_nan", each(kAllCodecs, {NAN})});
  cases.push_back({"from_f16", each(kAllCodecs, bells(1, 333), Dtype::f16)});
  cases.push_back({"from_bf16", each(kAllCodecs, bells(2, 333), Dtype::bf16)});
  cases.push_back({"casts", each({"none", "fp16", "bf16"}, hard_buckets())});
  cases.push_back(
      {"none_specials",
       {{"none", Dtype::f16, special_halves(), {}}, {"none", Dtype::bf16, special_halves(), {}}}});
}

void add_bucketed_cases(std::vector<GoldenCase>& cases) {
  const Floats x = heavy_tailed(3, 300);
  cases.push_back({"uniform_bits", each(specs_with_bits("uniform", 1, 8, ",bucket=100"), x)});
  cases.push_back({"uniform_nearest",
                   each(specs_with_bits("uniform", 1, 8, ",bucket=32,rounding=nearest"), x)});
  cases.push_back(
      {"uniform_fp32", each(specs_with_bits("uniform", 1, 8, ",bucket=64,meta=fp32"), x)});
  cases.push_back({"uniform_buckets", each({"uniform:bucket=1", "uniform:bucket=7",
                                            "uniform:bucket=999", "uniform:bucket=1073741824"},
                                           x)});
  cases.push_back({"uniform_tiles", {segment("uniform", bells(4, 5000), Dtype::f32, 1280)}});
  cases.push_back(
      {"uniform_hard", each({"uniform:bits=4,bucket=8", "uniform:bits=4,bucket=8,meta=fp32",
                             "uniform:bits=8,bucket=8,rounding=nearest", "uniform:bits=1,bucket=8"},
                            hard_buckets())});
  cases.push_back(
      {"exponential_bits", each(specs_with_bits("exponential", 2, 8, ",bucket=100"), x)});
  cases.push_back(
      {"exponential_nearest",
       each(specs_with_bits("exponential", 2, 8, ",bucket=77,rounding=nearest,meta=fp32"), x)});
  cases.push_back({"exponential_hard",
                   each({"exponential:bits=4,bucket=8", "exponential:bits=8,bucket=8,meta=fp32"},
                        hard_buckets())});
  cases.push_back({"sign", each({"sign", "sign:bucket=7", "sign:bucket=100,meta=fp32"}, x)});
  cases.push_back(
      {"sign_hard", each({"sign:bucket=8", "sign:bucket=8,meta=fp32"}, hard_buckets())});
}

const std::string kHalfSteps = "grid:step=0.5,locality=0,rms=1,rounding=nearest";

void add_grid_cases(std::vector<GoldenCase>& cases) {
  const Floats x = heavy_tailed(5, 5000);
  cases.push_back(
      {"grid_coded", each({"grid", "grid:rounding=nearest", "grid:locality=0", "grid:locality=1",
                           "grid:step=2", "grid:nmse=0.02", "grid:rms=0.125"},
                          x)});
  cases.push_back({"grid_shapes",
                   {segment("grid:locality=0", bells(6, 3000)), segment("grid:locality=0", x),
                    segment("grid:locality=0", mixed_widths(7, 3000, 2, 1.8f)),
                    segment("grid:locality=0", mixed_widths(8, 3000, 4, 3.0f)),
                    segment("grid:locality=0", thinned(bells(23, 3000), 2)),
                    segment("grid:locality=0", thinned(bells(24, 3000), 4)),
                    segment("grid:locality=0", thinned(mixed_widths(25, 3000, 4, 3.0f), 2)),
                    segment("grid:locality=0", thinned(mixed_widths(26, 3000, 4, 3.0f), 4))}});
  cases.push_back({"grid_classes", {segment(kHalfSteps, widening_blocks(22, 7100))}});
  cases.push_back({"grid_shifted",
                   each({"grid:step=0.05", "grid:step=0.002,locality=0", "grid:step=0.0009765625"},
                        bells(8, 2500))});
  cases.push_back(
      {"grid_escapes",
       {segment(kHalfSteps,
                sparse_steps(4000, 100, {8, -8, 9, -9, 70, 134, -134, 135, -135, 136, 200, -250})),
        segment(kHalfSteps, sparse_steps(4000, 300, {15000, -15000, 1, 4000, -700}))}});
  cases.push_back(
      {"grid_packed",
       {segment("grid", bells(9, 129)), segment(kHalfSteps, sparse_steps(900, 1, {1, 2, -3, 0})),
        segment("grid:step=0.05,rms=1", uneven_blocks(10, 1200, 9)),
        segment("grid", with(bells(11, 300), {{130, NAN}})),
        segment("grid:rounding=nearest", with(Floats(300), {{0, 1.0f}, {299, 100.0f}}))}});
  cases.push_back({"grid_zeros",
                   {segment("grid", Floats(5000)), segment("grid:rounding=dither", Floats(5000))}});
  cases.push_back(
      {"grid_not_finite",
       each({"grid", "grid:rounding=dither"},
            with(bells(12, 4000), {{5, NAN}, {700, kInfinity}, {1500, -kInfinity}, {3999, NAN}}))});
  cases.push_back({"grid_extreme",
                   {segment("grid", with(bells(13, 3000), {{0, kLargest}, {999, -kLargest}})),
                    segment("grid", with(Floats(3000), {{17, kSmallest}, {2000, 1e-40f}})),
                    segment("grid:rms=1e-30", bells(14, 3000))}});
  cases.push_back(
      {"grid_scales",
       {segment("grid", uneven_blocks(15, 9000, 5)), segment("grid", uneven_blocks(16, 9000, 60)),
        segment("grid:locality=1", uneven_blocks(17, 9000, 60))}});
  cases.push_back(
      {"grid_dither",
       {segment("grid:rounding=dither", x), segment("grid:rounding=dither", bells(18, 200)),
        segment("grid:rounding=dither", bells(19, 3000), Dtype::f32, 1280),
        segment("grid:rounding=dither", bells(20, 3000), Dtype::f32, kRegionElements - 1280)}});
  Floats chunks = bells(21, 70000);
  for (std::size_t i = 20000; i < chunks.size(); ++i) chunks[i] = i % 50 == 0 ? chunks[i] : 0.0f;
  cases.push_back({"grid_chunks", {segment("grid", chunks)}});
  Floats last_only(2 * 65536 + 300);
  last_only.back() = 1;
  cases.push_back({"grid_chunk_modes", {segment("grid", last_only)}});
}

/// Values on which only some are large: blocks of neighbors, and single ones.
Floats some_large(std::uint64_t seed, std::size_t count) {
  Floats x = bells(seed, count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool large = mix64(seed + i / 40) % 50 == 0 || mix64(seed + 3 * i) % 200 == 0;
    x[i] = std::ldexp(x[i], large ? 0 : -20);
  }
  return x;
}

const std::vector<std::string> kValueKinds = {"fp32", "fp16", "int8", "mean"};

void add_sparse_cases(std::vector<GoldenCase>& cases) {
  const Floats hard = with(some_large(27, 3000), {{0, NAN},
                                                  {1, -kInfinity},
                                                  {2000, kInfinity},
                                                  {2500, kLargest},
                                                  {2501, -kLargest},
                                                  {2999, kSmallest}});
  const Floats x = heavy_tailed(28, 5000);
  for (const std::string& values : kValueKinds) {
    const std::string last = ",values=" + values;
    cases.push_back(
        {"topk_" + values,
         {segment("topk:density=0.02" + last, x), segment("topk:density=0.5" + last, x),
          segment("topk:density=1" + last, x), segment("topk:density=0.001" + last, {-1.5f}),
          segment("topk:density=0.1" + last, some_large(29, 5000), Dtype::bf16),
          segment("topk:threshold=0" + last, hard),
          segment("topk:density=0.01" + last, Floats(1000)),
          segment("topk:density=0.1" + last, {})}});
  }
  cases.push_back(
      {"topk_selects", each({"topk:density=0.01,select=exact", "topk:density=0.01,select=trimmed",
                             "topk:density=0.01,select=search"},
                            x)});
  cases.push_back({"topk_ties",
                   {segment("topk:density=0.01", Floats(5000, -3.0f), Dtype::f32, 1280),
                    segment("topk:threshold=3,ties=999,low_threshold=3,low_ties=77,values=mean",
                            Floats(5000, 3.0f))}});
  cases.push_back(
      {"topk_wide_gaps", {segment("topk:threshold=1", with(Floats(200000), {{199999, 2.0f}}))}});
  cases.push_back(
      {"randomk",
       {segment("randomk:density=0.1", x), segment("randomk:density=0.1,scale=inverse", x),
        segment("randomk:density=1", bells(30, 300), Dtype::f16),
        segment("randomk:density=0.3,scale=inverse", bells(31, 3000), Dtype::bf16, 1280),
        segment("randomk:density=0.25", bells(32, 6000), Dtype::f32, kRegionElements - 1280),
        segment("randomk:density=0.25,scale=inverse", hard), segment("randomk", {-1.5f}),
        segment("randomk", {})}});
}

// ---------------------------------------------------------------------------------------------
// Bad frames

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

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  add_general_cases(cases);
  add_bucketed_cases(cases);
  add_grid_cases(cases);
  add_sparse_cases(cases);
  return cases;
}

std::vector<BadCase> bad_cases() {
  BadCases bad;
  add_bad_envelopes(bad);
  add_bad_segments(bad);
  add_bad_grid_payloads(bad);
  add_bad_sparse_payloads(bad);
  add_bad_coded_chunks(bad);
  return bad.take();
}

Bytes encode(const GoldenCase& golden) {
  std::vector<Segment> segments;
  for (const GoldenSegment& part : golden.segments) {
    segments.push_back(
        {Codec::parse(part.spec), {part.values.data(), part.count(), part.dtype}, part.options});
  }
  Bytes frame(max_frame_bytes(segments));
  const Encoded encoded = encode_frame(segments, frame);
  check(encoded.status);
  frame.resize(encoded.bytes);
  return frame;
}

std::uint64_t hash_of(const std::vector<float>& numbers) {
  Bytes bytes;
  for (const float x : numbers)
    put(bytes, bytes.size(), std::isnan(x) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x));
  return checksum(bytes);
}

}  // namespace gradwire::golden
