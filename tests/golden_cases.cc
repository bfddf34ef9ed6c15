#include "golden_cases.h"

#include <bit>
#include <cmath>
#include <span>

#include "base/checksum.h"
#include "base/random_stream.h"
#include "golden_numbers.h"

namespace gradwire::golden {
namespace {

std::vector<GoldenSegment> each(const std::vector<std::string>& specs, const Floats& x,
                                Dtype dtype = Dtype::f32) {
  std::vector<GoldenSegment> segments;
  for (const std::string& spec : specs) segments.push_back(segment(spec, x, dtype));
  return segments;
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

}  // namespace

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  add_general_cases(cases);
  add_bucketed_cases(cases);
  add_grid_cases(cases);
  add_sparse_cases(cases);
  return cases;
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
  std::vector<std::uint32_t> bits;
  for (const float x : numbers)
    bits.push_back(std::isnan(x) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x));
  return checksum(std::as_bytes(std::span(bits)));
}

}  // namespace gradwire::golden
