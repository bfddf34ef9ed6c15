// The ways to go that have a name, and all others.
//
// An algorithm is a list of legs. Those with a name are what people write in a route; whoever
// wants another writes an option out, see option.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collective/option.h"
#include "collective/schedule.h"

namespace gradwire {

struct Algorithm {
  std::string name;
  std::string summary;
  std::vector<Leg> legs;

  /// Why these ranks cannot use it for this collective; empty when they can.
  std::string refusal(Collective collective, const Ranks& ranks) const;
  /// The part of rank `me`.
  Schedule make(Collective collective, const Ranks& ranks, Rank me) const;
  /// In so many of the messages that one rank makes or passes on is the same chunk, at most:
  /// whoever executes a schedule needs memory for them.
  std::uint32_t copies(Collective collective, const Ranks& ranks) const;
  /// Whether some messages are encoded exactly, whatever the way.
  bool has_exact() const;
  /// Whether several ranks make the same message. If any do, the first is one of them.
  bool replicates(Collective collective, const Ranks& ranks) const;
};

/// Those that have a name, in the order in which help texts list them.
const std::vector<Algorithm>& algorithms();

/// The one of this name, or the option that this text writes out. Throws `Error(invalid_argument)`
/// that lists what exists.
Algorithm find_algorithm(std::string_view name);

/// The same, for these ranks: throws as well when they cannot use it, and says why.
Algorithm find_algorithm(std::string_view name, Collective collective, const Ranks& ranks);

}  // namespace gradwire
