// A sweep as a picture: how long a step takes, and below it which codec takes how much.
#pragma once

#include <string>
#include <vector>

#include "plan/sweep.h"

namespace gradwire::cli {

struct SweepTitles {
  std::string title;
  std::string subtitle;
};

/// SVG, at least of two points.
std::string draw_sweep(const SweepTitles& titles, const Sweep& sweep,
                       const std::vector<SweepPoint>& points);

}  // namespace gradwire::cli
