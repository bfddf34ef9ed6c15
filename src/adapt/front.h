// The candidates of a layer that are worth taking.
#pragma once

#include <cstddef>
#include <vector>

#include "adapt/solver.h"

namespace gradwire::adapt {

/// Whether the layer's errors are numbers that a budget can be kept with.
bool counts(const Layer& layer);

/// Throws `Error(invalid_argument)` if it has none.
void check_candidates(const Layer& layer);

/// One candidate as solvers see it.
struct Point {
  std::size_t candidate;
  double bytes;
  double error;  ///< weighted
};

/// Without candidates that have no fewer bytes than another and no smaller error: from point to
/// point bytes rise and errors fall. Of a layer that does not count, the last candidate, without an
/// error. Throws as `check_candidates`.
std::vector<Point> front_of(const Layer& layer);

/// Without those of a front that lie on or above a line between two others: from point to point a
/// byte saves less error.
std::vector<Point> hull_of(const std::vector<Point>& front);

}  // namespace gradwire::adapt
