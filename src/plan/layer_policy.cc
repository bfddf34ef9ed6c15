#include "plan/layer_policy.h"

#include <algorithm>

#include "codec/registry.h"
#include "plan/route.h"

namespace gradwire {
double exchange_seconds(const Codec& codec, std::size_t elements, const Network& network) noexcept {
  Traffic traffic;
  traffic.add(codec, elements);
  const Route route = cheapest_route(traffic, network.ranks);
  const CodecCost cost = cost_of(codec);
  const double computing =
      1e-6 * cost.microseconds + 1e-9 * cost.nanoseconds * static_cast<double>(elements);
  return computing + static_cast<double>(route.bytes) / network.bytes_per_second;
}

const Codec& fastest(std::span<const Codec> ways, std::size_t elements,
                     const Network& network) noexcept {
  return *std::ranges::min_element(
      ways, {}, [&](const Codec& way) { return exchange_seconds(way, elements, network); });
}

}  // namespace gradwire
