#include "codec/codec_test_bounds.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>

#include "codec/codec_test_data.h"
#include "codec/spec.h"

namespace gradwire::test {
namespace {

constexpr double kTiny = 0x1p-149;  // the smallest float
constexpr float kMost = 1u << 30;
const float kLargestBf16 = widen(0x7f7f, Dtype::bf16);

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

double largest_magnitude(std::span<const float> x) {
  double largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

/// The settings that bucketed codecs share, read from a spec with all keys.
struct BucketSettings {
  int bits;
  std::size_t bucket;
  bool bf16_meta;

  explicit BucketSettings(const std::string& text) {
    SpecReader spec(text);
    bits = static_cast<int>(spec.integer("bits", 1, 1, 8));
    bucket = spec.integer("bucket", 1, 1, 1u << 30);
    bf16_meta = spec.choice("meta", 0, kMetas) == 0;
  }
};

Bound uniform_bound(const BucketSettings& how, std::span<const float> bucket) {
  const auto [low_at, high_at] = std::minmax_element(bucket.begin(), bucket.end());
  const double levels = (1 << how.bits) - 1;
  const double low = how.bf16_meta ? bf16_below(*low_at) : *low_at;
  double unit =
      std::max(0.0, *high_at - low) / levels;  // with one bit, it may be too large for a float
  if (how.bf16_meta)
    unit = std::max<double>(unit, bf16_above(static_cast<float>(unit * (1 + 1e-6))));
  const double beyond = std::max(0.0, low - *low_at);  // below the lowest finite bf16
  const double reach = largest_magnitude(bucket);
  return {unit, beyond + reach * 0x1p-22 + unit * 0x1p-14 + levels * kTiny};
}

Bound exponential_bound(const BucketSettings& how, double largest, float x) {
  const double norm = how.bf16_meta ? bf16_above(static_cast<float>(largest)) : largest;
  const int top = (1 << (how.bits - 1)) - 1;
  const double smallest = std::ldexp(norm, 1 - top);
  const double magnitude = std::fabs(static_cast<double>(x));
  double distance = smallest;
  if (magnitude >= smallest && norm > 0) {
    distance = std::ldexp(norm, static_cast<int>(std::floor(std::log2(magnitude / norm))));
  }
  const double beyond = std::max(0.0, largest - norm);
  return {distance, beyond + magnitude * 0x1p-22 + distance * 0x1p-14 + 2 * kTiny};
}

std::vector<Bound> bucketed_bounds(const Codec& codec, std::span<const float> x) {
  const BucketSettings how(codec.spec());
  std::vector<Bound> bounds;
  for (std::size_t first = 0; first < x.size(); first += how.bucket) {
    const auto bucket = x.subspan(first, std::min(how.bucket, x.size() - first));
    if (!all_finite(bucket)) {
      bounds.insert(bounds.end(), bucket.size(), Bound{INFINITY, 0});
    } else if (codec.name() == "uniform") {
      bounds.insert(bounds.end(), bucket.size(), uniform_bound(how, bucket));
    } else {
      const double largest = largest_magnitude(bucket);
      for (const float value : bucket) bounds.push_back(exponential_bound(how, largest, value));
    }
  }
  return bounds;
}

// ---------------------------------------------------------------------------------------------

constexpr std::size_t kBlock = 128;

double energy(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

std::vector<std::span<const float>> blocks_of(std::span<const float> x) {
  std::vector<std::span<const float>> blocks;
  for (std::size_t first = 0; first < x.size(); first += kBlock) {
    blocks.push_back(x.subspan(first, std::min(kBlock, x.size() - first)));
  }
  return blocks;
}

/// Steps follow the block's rms rounded up to half an octave, hence 2^(locality / 4) more than
/// documented.
std::vector<Bound> grid_bounds(const Codec& codec, std::span<const float> x) {
  const std::string text = codec.spec();
  SpecReader spec(text);
  const double step = spec.number("step", NAN, 0, kMost);
  const double locality = spec.number("locality", 0, 0, 1);
  double sum = 0;
  double count = 0;
  for (const auto block : blocks_of(x)) {
    if (!all_finite(block)) continue;
    sum += energy(block);
    count += static_cast<double>(block.size());
  }
  const double rms =
      spec.number("rms", static_cast<float>(std::sqrt(sum / std::max(count, 1.0))), 0, FLT_MAX);
  std::vector<Bound> bounds;
  for (const auto block : blocks_of(x)) {
    const double relative = energy(block) / static_cast<double>(block.size()) / (rms * rms);
    const double local = std::pow(std::max(relative, 0x1p-60), locality / 2);
    const double distance =
        all_finite(block) && rms > 0 ? step * rms * local * std::exp2(locality / 4) : 0;
    for (const float value : block) {
      bounds.push_back({distance, std::fabs(value) * 0x1p-21 + distance * 0x1p-14 + kTiny});
    }
  }
  return bounds;
}

}  // namespace

std::vector<Bound> bounds(const Codec& codec, std::span<const float> x) {
  return codec.name() == "grid" ? grid_bounds(codec, x) : bucketed_bounds(codec, x);
}

double rounding_share(const Codec& codec) {
  const std::string text = codec.spec();
  return SpecReader(text).choice("rounding", 0, kRoundings) == 0 ? 1.0 : 0.5;
}

float bf16_below(float x) {
  const float limited = std::clamp(x, -kLargestBf16, kLargestBf16);
  const std::uint16_t bits = narrow(limited, Dtype::bf16);
  const float near = widen(bits, Dtype::bf16);
  if (near <= limited) return near;
  if (bits == 0) return widen(0x8001, Dtype::bf16);
  return widen(static_cast<std::uint16_t>(bits & 0x8000 ? bits + 1 : bits - 1), Dtype::bf16);
}

float bf16_above(float x) { return -bf16_below(-x); }

}  // namespace gradwire::test
