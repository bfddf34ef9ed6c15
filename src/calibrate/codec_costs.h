// What codecs cost one thread of this machine, by size.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/codec.h"
#include "plan/costs.h"

namespace gradwire {

/// How much of it is measured.
struct CodecEffort {
  std::vector<std::size_t> sizes;  ///< elements, ascending
  unsigned rounds = 5;             ///< over all codecs and sizes, of which the median counts
  std::chrono::milliseconds most{20'000};  ///< after the first round, no further begins
};

/// Numbers such as gradients have, and room for as many: at least those of the largest size.
struct CodecInput {
  std::span<const float> numbers;
  std::span<float> room;
};

/// As the engine does it: dense codecs in pieces that caches hold, with notes taken by fitting, in
/// frames without checksums. Sizes that would take a codec longer than a quarter of a second are
/// left out. `on_step` hears what is being measured.
std::map<std::string, MeasuredCodec> measure_codecs(
    std::span<const Codec> codecs, const CodecInput& input, const CodecEffort& effort,
    const std::function<void(std::string_view)>& on_step = [](std::string_view) {});

}  // namespace gradwire
