// What the tests of this folder share: codecs, and calls of them that check what every codec
// promises.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/codec.h"
#include "gradwire/tensor.h"
#include "tensor/tensor_test_data.h"

namespace gradwire::test {

/// Every setting that selects other code.
std::vector<std::string> every_spec();
/// One or two of each codec, for tests that cost more.
std::vector<std::string> typical_specs();

/// Encodes. Checks the status, the size, that nothing is written beyond `max_encoded_bytes` and
/// that the input is left alone. The result is exactly as long as the payload.
std::vector<std::byte> encode(const Codec& codec, const Tensor& x,
                              const EncodeOptions& options = {});

/// Decodes and checks the status.
Tensor decode(const Codec& codec, std::span<const std::byte> payload, Dtype source,
              std::size_t count, Dtype dtype = Dtype::f32);

/// There and back: what x becomes.
std::vector<float> pass(const Codec& codec, const Tensor& x, const EncodeOptions& options = {});
std::vector<float> pass(std::string_view spec, std::span<const float> x,
                        const EncodeOptions& options = {});

}  // namespace gradwire::test
