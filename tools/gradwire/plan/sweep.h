// `gradwire plan --sweep`: the same plan at many points of one figure, such as the link's rate.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/planning_input.h"

namespace gradwire::cli {

/// What is varied, and over which values, ascending.
struct Sweep {
  std::string key;             ///< that of an option: link, hosts, ranks-per-host, step
  std::vector<double> values;  ///< bits per second; how many; milliseconds

  /// "2.5gbit", "8", "120": as the option takes it.
  std::string text_of(double value) const;
};

/// Reads `KEY=FROM:TO`, with `:POINTS` behind it if a number of points is wanted. They are a
/// geometric series, rounded to two digits between its ends. Throws `Error(invalid_argument)` that
/// says what would be right.
Sweep parse_sweep(const std::string& text);

/// What of the gradients a codec takes.
struct CodecShare {
  std::string codec;  ///< in its short form
  std::size_t tensors = 0;
  double of_bytes = 0;  ///< of gradients that are not compressed: from 0 to 1
};

struct SweepPoint {
  double value = 0;
  double predicted_seconds = 0;
  double compute_seconds = 0;
  Baselines baselines;
  std::vector<CodecShare> codecs;  ///< that take something, exact messages first
};

std::vector<SweepPoint> plan_points(const PlanningInput& input, const Sweep& sweep);

/// Between which values the plan takes a codec for 1 % of the gradients or more.
struct CodecRange {
  std::string codec;
  double from = 0, to = 0;
};

/// Of all codecs that compress, in the order of their names.
std::vector<CodecRange> ranges_of(const std::vector<SweepPoint>& points);

}  // namespace gradwire::cli
