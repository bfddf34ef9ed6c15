// Steps of `grid`, as fine as they need be: another byte saves as much error in every layer.
//
// Each layer was measured at a few steps. Between two of them bytes fall in proportion to the
// logarithm of the error, as they do for any source that is quantized finely (6 dB a bit), and
// logarithms of step and error change in proportion. On such a curve the error at a given price
// has a closed form, and the price at which the errors fill the budget is found by bisection.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "adapt/front.h"
#include "codec/grid.h"

namespace gradwire::adapt {
namespace {

constexpr int kMostHalvings = 60;
/// The budget may be left unused by so much.
constexpr double kTolerance = 1e-6;
/// Errors below this share of a layer's energy are taken for it: of zero there is no logarithm.
constexpr double kLeastError = 1e-12;

/// A step that was measured.
struct Knot {
  double log_error;  // weighted
  double bytes;
  double log_step;
  std::size_t candidate;
};

/// Between two knots.
struct Position {
  std::size_t knot = 0;  // the finer one
  double share = 0;      // of the way to the coarser one
};

double between(double a, double b, double share) { return share == 0 ? a : a + share * (b - a); }

/// Bytes by the logarithm of the error, convex: from knot to knot a byte saves more.
class Curve {
 public:
  explicit Curve(const Layer& layer) {
    std::vector<Point> points = front_of(layer);
    const double least = counts(layer) ? kLeastError * layer.weight * layer.energy : 0;
    // An error that no budget feels leaves nothing to choose.
    if (!(points.front().error > least)) points.resize(1);
    while (points.size() > 1 && !(points[points.size() - 2].error > least)) points.pop_back();
    for (Point& point : points) point.error = std::log(std::max(point.error, least));
    const std::vector<Point> hull = hull_of(points);
    for (auto point = hull.rbegin(); point != hull.rend(); ++point) add(layer, *point);
  }

  /// Whether there is a choice.
  bool has_choice() const { return knots_.size() > 1; }

  /// From there on the finest knot is taken, and up to there the coarsest: logarithms.
  double highest_price() const { return log_gains_.front() - knots_.front().log_error; }
  double lowest_price() const { return log_gains_.back() - knots_.back().log_error; }

  /// Where bytes plus exp(log_price) times error are least.
  Position at(double log_price) const {
    for (std::size_t i = 0; i + 1 < knots_.size(); ++i) {
      const double log_error = log_gains_[i] - log_price;
      if (log_error >= knots_[i + 1].log_error) continue;
      const double length = knots_[i + 1].log_error - knots_[i].log_error;
      return {i, std::max(0.0, (log_error - knots_[i].log_error) / length)};
    }
    return {knots_.size() - 1, 0};
  }

  double log_error(Position at) const {
    if (at.share == 0) return knots_[at.knot].log_error;
    return between(knots_[at.knot].log_error, knots_[at.knot + 1].log_error, at.share);
  }

  /// The choice there: its step is rounded down to three digits, so that the last bits of
  /// logarithms, which differ between machines, decide nothing.
  Candidate choice(const Layer& layer, Position at) const {
    const Candidate& finer = layer.candidates[knots_[at.knot].candidate];
    if (at.share == 0) return finer;
    const Knot& from = knots_[at.knot];
    const Knot& to = knots_[at.knot + 1];
    const double step = rounded_down(std::exp(between(from.log_step, to.log_step, at.share)));
    const double share = (std::log(step) - from.log_step) / (to.log_step - from.log_step);
    if (!(share > 0)) return finer;
    const double error = std::exp(between(from.log_error, to.log_error, share)) / layer.weight;
    return {grid::with_step(finer.codec, static_cast<float>(step)),
            between(from.bytes, to.bytes, share), error};
  }

 private:
  void add(const Layer& layer, const Point& point) {
    const Codec& codec = layer.candidates[point.candidate].codec;
    const auto step = grid::step_of(codec);
    if (!step) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("waterfill chooses steps of grid, and layer '{}' has the candidate "
                              "{}; give it grid:step=… or solve by dp",
                              layer.name, codec.spec()));
    }
    knots_.push_back({point.error, point.bytes, std::log(*step), point.candidate});
    const std::size_t count = knots_.size();
    if (count > 1) log_gains_.push_back(log_gain(count - 2));
  }

  /// Of the bytes that go for each e-fold of error between two knots.
  double log_gain(std::size_t knot) const {
    const Knot& finer = knots_[knot];
    const Knot& coarser = knots_[knot + 1];
    return std::log((finer.bytes - coarser.bytes) / (coarser.log_error - finer.log_error));
  }

  static double rounded_down(double step) {
    double scale = 1;
    while (step * scale < 100) scale *= 10;
    return std::floor(step * scale) / scale;
  }

  std::vector<Knot> knots_;  // from the finest on
  std::vector<double> log_gains_;
};

double error_at(const std::vector<Curve>& curves, double log_price) {
  double error = 0;
  for (const Curve& curve : curves) {
    error += std::exp(curve.log_error(curve.at(log_price)));
  }
  return error;
}

/// The lowest price at which errors are within the budget; the highest there is if none is. The
/// logarithm of it.
double price_within(const std::vector<Curve>& curves, double budget) {
  double low = 0, high = 0;
  for (const Curve& curve : curves) {
    if (!curve.has_choice()) continue;
    low = std::min(low, curve.lowest_price() - 1);  // a little beyond, as sums are rounded
    high = std::max(high, curve.highest_price() + 1);
  }
  if (error_at(curves, low) <= budget) return low;
  for (int i = 0; i < kMostHalvings; ++i) {
    const double middle = (low + high) / 2;
    const double error = error_at(curves, middle);
    (error <= budget ? high : low) = middle;
    if (error <= budget && error >= budget * (1 - kTolerance)) break;
  }
  return high;
}

Choices solve(std::span<const Layer> layers, double budget) {
  std::vector<Curve> curves;
  curves.reserve(layers.size());
  for (const Layer& layer : layers) curves.emplace_back(layer);
  const double log_price = price_within(curves, budget);
  Choices choices;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    choices.push_back(curves[i].choice(layers[i], curves[i].at(log_price)));
  }
  return choices;
}

}  // namespace

const Solver kWaterfill = {.name = "waterfill",
                           .summary = "steps of grid at which a byte saves as much everywhere",
                           .keeps_budget = true,
                           .solve = solve};

}  // namespace gradwire::adapt
