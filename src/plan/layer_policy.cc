#include "plan/layer_policy.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "plan/route.h"

namespace gradwire {
namespace {

/// Of fitting, encoding and decoding, on one core of an AMD EPYC with AVX2. `gradwire bench select`
/// and `gradwire bench codec` measure them.
struct Rate {
  std::string_view codec;  // how its spec begins, or what is in it
  double microseconds;     // for a layer of any size
  double nanoseconds;      // for each element
};

constexpr Rate kRates[] = {
    {"select=bracket", 35, 0.55}, {"select=exact", 35, 0.75}, {"select=trimmed", 35, 1.15},
    {"select=search", 10, 0.9},   {"randomk", 5, 1.0},        {"grid", 5, 3.5},
    {"uniform", 2, 0.6},          {"exponential", 2, 1.0},    {"sign", 2, 0.5},
};
constexpr Rate kCast{"", 1, 0.5};  // none, fp16, bf16: what memory takes

const Rate& rate_of(const Codec& codec) {
  const std::string spec = codec.spec();
  const auto found = std::ranges::find_if(
      kRates, [&](const Rate& rate) { return spec.find(rate.codec) != std::string::npos; });
  return found == std::end(kRates) ? kCast : *found;
}

}  // namespace

double exchange_seconds(const Codec& codec, std::size_t elements, const Network& network) noexcept {
  Traffic traffic;
  traffic.add(codec, elements);
  const Route route = cheapest_route(traffic, network.ranks);
  const Rate& rate = rate_of(codec);
  const double computing =
      1e-6 * rate.microseconds + 1e-9 * rate.nanoseconds * static_cast<double>(elements);
  return computing + static_cast<double>(route.bytes) / network.bytes_per_second;
}

const Codec& fastest(std::span<const Codec> ways, std::size_t elements,
                     const Network& network) noexcept {
  return *std::ranges::min_element(
      ways, {}, [&](const Codec& way) { return exchange_seconds(way, elements, network); });
}

}  // namespace gradwire
