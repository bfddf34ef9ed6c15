// Plans as people write them, from values that know where they stand.
#pragma once

#include <cstdint>

#include "gradwire/plan.h"
#include "plan/located_json.h"

namespace gradwire {

inline constexpr std::uint64_t kPlanVersion = 1;  ///< of the format

/// Throws `Error(invalid_spec)` that names the place and what would be right there.
Plan read_plan(const LocatedJson& root);

}  // namespace gradwire
