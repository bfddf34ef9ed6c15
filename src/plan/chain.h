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
  codec,      ///< encodes and decodes where gradients are, and hands messages to the system
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
  std::uint8_t load = 0;  ///< of its option: what it is done for

  friend bool operator==(const Task&, const Task&) = default;
};

/// A tensor is prepared as a whole. Then its pieces, which are alike, pass the tasks, each piece
/// one task after the other.
struct Chain {
  static constexpr std::uint32_t kMostPieces = 8;  ///< more of them are forecast as so many

  double preparation = 0;  ///< seconds of `Resource::codec`
  std::vector<Task> tasks{};
  std::uint32_t pieces = 1;

  friend bool operator==(const Chain&, const Chain&) = default;
};

/// Makes chains of loads.
class ChainMaker {
 public:
  /// Throws as `Costs::codec` does, if exact messages were not measured.
  ChainMaker(const Costs& costs, const Cluster& cluster);

  /// Of a tensor of `elements` whose messages are encoded by a codec, from the loads that its
  /// option has for one element.
  Chain make(std::span<const Load> loads, const Codec& codec, const MeasuredCodec& measured,
             std::size_t elements) const;

 private:
  const Costs& costs_;
  const Cluster cluster_;
  const MeasuredCodec& exact_;
};

/// How long each resource is busy.
std::array<double, kResources> busy_seconds(const Chain& chain) noexcept;

/// How long a chain takes if nobody else is there.
double seconds_alone(const Chain& chain) noexcept;

}  // namespace gradwire
