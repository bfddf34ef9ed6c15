#include "bench/distortion.h"

#include <algorithm>
#include <limits>

#include "gradwire/error.h"
#include "gradwire/frame.h"

namespace gradwire::cli {
namespace {

template <typename T>
void grow(std::vector<T>& buffer, std::size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

TensorView view_of(std::span<float> values) { return {values.data(), values.size(), Dtype::f32}; }

}  // namespace

double Distortion::bits_per_element() const {
  return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

double Distortion::nmse() const {
  if (squared_error == 0) return 0;
  return energy == 0 ? std::numeric_limits<double>::infinity() : squared_error / energy;
}

Distortion& Distortion::operator+=(const Distortion& other) {
  elements += other.elements;
  bytes += other.bytes;
  squared_error += other.squared_error;
  energy += other.energy;
  return *this;
}

void add_error(std::span<const float> original, std::span<const float> decoded,
               Distortion& result) {
  double squared_error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double x = original[i];
    const double error = static_cast<double>(decoded[i]) - x;
    squared_error += error * error;
    energy += x * x;
  }
  result.squared_error += squared_error;
  result.energy += energy;
}

std::span<const std::byte> DistortionMeter::encode(const Codec& codec,
                                                   std::span<const Layer> layers,
                                                   std::uint64_t step) {
  std::vector<Segment> segments;
  for (const Layer& layer : layers) {
    segments.push_back(
        {codec, layer.values, {.random = {.step = step, .tensor = layer.key}, .turn = step}});
  }
  grow(frame_, max_frame_bytes(segments));
  const Encoded encoded = encode_frame(segments, frame_);
  check(encoded.status);
  return std::span(frame_).first(encoded.bytes);
}

/// The codec `none` decodes any dtype to f32 exactly.
std::span<const float> DistortionMeter::widen(ConstTensorView values) {
  if (values.dtype == Dtype::f32) return {static_cast<const float*>(values.data), values.count};
  const Codec none = Codec::parse("none");
  grow(exact_, none.max_encoded_bytes(values.count));
  grow(original_, values.count);
  const Encoded encoded = none.encode(values, {}, exact_);
  check(encoded.status);
  const std::span<float> out = std::span(original_).first(values.count);
  check(none.decode(std::span(exact_).first(encoded.bytes), values.dtype, view_of(out)));
  return out;
}

Distortion DistortionMeter::measure(const Codec& codec, std::span<const Layer> layers,
                                    std::uint64_t step) {
  const std::span<const std::byte> bytes = encode(codec, layers, step);
  Distortion result;
  result.bytes = bytes.size();
  FrameReader frame(bytes);
  check(frame.status());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::size_t count = layers[i].values.count;
    grow(decoded_, count);
    const std::span<float> decoded = std::span(decoded_).first(count);
    check(frame.decode(i, view_of(decoded)));
    add_error(widen(layers[i].values), decoded, result);
    result.elements += count;
  }
  return result;
}

}  // namespace gradwire::cli
