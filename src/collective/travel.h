// What each rank does when numbers travel by legs.
#pragma once

#include <span>
#include <string>

#include "collective/option.h"
#include "collective/schedule.h"

namespace gradwire {

/// Why these ranks cannot take them for this collective; empty when they can. Legs are for
/// all_reduce. Their first or last hop alone is a reduce_scatter, an all_gather or a broadcast,
/// where it is one of all ranks.
std::string refusal_of(std::span<const Leg> legs, Collective collective, const Ranks& ranks);

/// The part of rank `me`, if nothing is refused.
Schedule make_schedule(std::span<const Leg> legs, Collective collective, const Ranks& ranks,
                       Rank me);

}  // namespace gradwire
