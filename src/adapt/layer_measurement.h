// What codecs cost for the numbers of one layer.
#pragma once

#include <span>
#include <string>

#include "adapt/solver.h"
#include "gradwire/random.h"

namespace gradwire::adapt {

/// By encoding and decoding all of them, once. Bytes are those of the payload.
Candidate measure(std::span<const float> numbers, const Codec& codec, const RandomKey& random = {});

/// A layer of these numbers with the codecs as candidates, from the fewest bytes on, and the error
/// of the reference codec.
Layer measure_layer(std::string name, std::span<const float> numbers, std::span<const Codec> codecs,
                    const Codec& reference, const RandomKey& random = {});

}  // namespace gradwire::adapt
