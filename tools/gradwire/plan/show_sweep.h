// What `gradwire plan --sweep` prints and draws.
#pragma once

#include <string>

#include "plan/planning_input.h"

namespace gradwire::cli {

struct SweepOptions {
  std::string sweep;    ///< see `parse_sweep`
  std::string picture;  ///< a path for it; empty: none
  bool json = false;
};

/// Throws `Error` for a sweep that cannot be, and as `make_plan` and `write_text` do.
void show_sweep(const PlanningInput& input, const SweepOptions& options);

}  // namespace gradwire::cli
