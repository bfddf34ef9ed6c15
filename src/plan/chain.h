// A tensor's way through a step: what it keeps busy, one after the other, and for how long.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/codec.h"
#include "plan/costs.h"
#include "plan/load.h"

namespace gradwire {

/// What does one thing at a time, all of them at once.
enum class Resource : std::uint8_t {
  codec,      ///< encodes and decodes where gradients are
  other,      ///< the same on a second device
  inside,     ///< the links of a rank inside its host
  sending,    ///< a host's link, outwards
  receiving,  ///< and inwards
};
inline constexpr std::size_t kResources = 5;

struct Task {
  Resource resource;
  bool beside = false;  ///< it begins when the one before begins
  double seconds = 0;

  friend bool operator==(const Task&, const Task&) = default;
};

using Chain = std::vector<Task>;

/// Makes chains of loads.
class ChainMaker {
 public:
  /// Throws as `Costs::codec` does, if exact messages were not measured.
  explicit ChainMaker(const Costs& costs);

  /// Of a tensor of `elements` whose messages are encoded by a codec, from the loads that its
  /// option has for one element.
  Chain make(std::span<const Load> loads, const MeasuredCodec& codec, std::size_t elements) const;

 private:
  const Costs& costs_;
  const MeasuredCodec& exact_;
};

/// How long each resource is busy.
std::array<double, kResources> busy_seconds(std::span<const Task> chain) noexcept;

}  // namespace gradwire
