// Proves schedules right, by running them on symbols instead of numbers.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "collective/algorithms.h"
#include "collective/schedule.h"

namespace gradwire {

/// The schedules of all ranks.
std::vector<Schedule> make_all(const Algorithm& algorithm, Collective collective,
                               const Ranks& ranks);

/// What is wrong with the schedules of all ranks, or nothing. Checked are: everybody comes to an
/// end, every message is received and used before its slot is, every rank's numbers are in each
/// result exactly once, all ranks decode their results from the same bytes, so that they are equal
/// to the bit, of sums everything that a message or rounding takes is kept once, somewhere, each
/// number is taken from the input by one step, and of the ranks that finish a sum one counts it.
std::optional<std::string> validate(std::span<const Schedule> schedules, Collective collective,
                                    const Ranks& ranks);

}  // namespace gradwire
