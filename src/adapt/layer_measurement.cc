#include "adapt/layer_measurement.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gradwire::adapt {

Candidate measure(std::span<const float> numbers, const Codec& codec, const RandomKey& random) {
  const ConstTensorView view{numbers.data(), numbers.size(), Dtype::f32};
  const Codec fitted = codec.fit(view);
  std::vector<std::byte> bytes(fitted.max_encoded_bytes(numbers.size()));
  const Encoded done = fitted.encode(view, {.random = random}, bytes);
  check(done.status);
  std::vector<float> decoded(numbers.size());
  check(fitted.decode(std::span(bytes).first(done.bytes), Dtype::f32,
                      {decoded.data(), decoded.size(), Dtype::f32}));
  Candidate candidate{codec, static_cast<double>(done.bytes), 0};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double error = static_cast<double>(decoded[i]) - static_cast<double>(numbers[i]);
    candidate.squared_error += error * error;
  }
  return candidate;
}

Layer measure_layer(std::string name, std::span<const float> numbers, std::span<const Codec> codecs,
                    const Codec& reference, const RandomKey& random) {
  Layer layer{.name = std::move(name), .elements = numbers.size()};
  for (const float number : numbers) layer.energy += static_cast<double>(number) * number;
  layer.reference_error = measure(numbers, reference, random).squared_error;
  for (const Codec& codec : codecs) layer.candidates.push_back(measure(numbers, codec, random));
  std::stable_sort(layer.candidates.begin(), layer.candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; });
  return layer;
}

}  // namespace gradwire::adapt
