#include "adapt/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace gradwire::adapt {
namespace {

bool is_finite(const Candidate& candidate) {
  return std::isfinite(candidate.bytes) && std::isfinite(candidate.squared_error);
}

/// Whether `middle` is on or above the line from `left` to `right`.
bool is_above(const Point& left, const Point& middle, const Point& right) {
  return (left.error - middle.error) * (right.bytes - middle.bytes) <=
         (middle.error - right.error) * (middle.bytes - left.bytes);
}

}  // namespace

bool counts(const Layer& layer) {
  return std::isfinite(layer.energy) && std::isfinite(layer.weight) && layer.weight >= 0 &&
         std::isfinite(layer.reference_error) &&
         std::any_of(layer.candidates.begin(), layer.candidates.end(), is_finite);
}

void check_candidates(const Layer& layer) {
  if (!layer.candidates.empty()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("layer '{}' has no candidates; give it one codec at least", layer.name));
}

std::vector<Point> front_of(const Layer& layer) {
  check_candidates(layer);
  if (!counts(layer)) {
    const std::size_t last = layer.candidates.size() - 1;
    const double bytes = layer.candidates[last].bytes;
    return {{last, std::isfinite(bytes) ? bytes : 0, 0}};
  }
  std::vector<Point> points;
  for (std::size_t i = 0; i < layer.candidates.size(); ++i) {
    const Candidate& candidate = layer.candidates[i];
    if (!is_finite(candidate)) continue;
    points.push_back({i, candidate.bytes, layer.weight * candidate.squared_error});
  }
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return std::tie(a.bytes, a.error) < std::tie(b.bytes, b.error);
  });
  std::vector<Point> front;
  for (const Point& point : points) {
    if (front.empty() || point.error < front.back().error) front.push_back(point);
  }
  return front;
}

std::vector<Point> hull_of(const std::vector<Point>& front) {
  std::vector<Point> hull;
  for (const Point& point : front) {
    while (hull.size() > 1 && is_above(hull[hull.size() - 2], hull.back(), point)) hull.pop_back();
    hull.push_back(point);
  }
  return hull;
}

}  // namespace gradwire::adapt
