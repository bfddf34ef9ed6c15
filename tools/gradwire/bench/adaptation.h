// What solvers of `src/adapt/` choose for the layers of one model at one step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradients/gradient_groups.h"

namespace gradwire::cli {

/// One solver's choices, encoded and decoded again.
struct Adaptation {
  std::string solver;      ///< or "uniform" for the reference codec in all layers
  std::string candidates;  ///< in words
  double bytes = 0;        ///< of payloads
  double squared_error = 0;
  double milliseconds = 0;  ///< of solving
};

struct AdaptedGroup {
  std::string name;
  std::uint64_t layers = 0;  ///< that codecs take: gradwire sends the others exactly
  std::uint64_t elements = 0;
  double budget = 0;                      ///< squared error of the reference codec
  std::vector<Adaptation> adaptations{};  ///< the reference first

  /// To what both have; of milliseconds the larger ones are kept.
  AdaptedGroup& operator+=(const AdaptedGroup& other);
};

/// All solvers within the same budget.
AdaptedGroup compare_solvers(const GradientGroup& group);

}  // namespace gradwire::cli
