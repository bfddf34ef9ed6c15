// L-GreCo's knapsack: of every layer one candidate, the fewest bytes whose errors fit in the
// budget.
//
// L-GreCo rounds errors to 1/10,000 of the budget, which with hundreds of layers wastes several per
// cent of it. Here nothing is rounded; most of the knapsack is decided before it is packed:
//
// 1. Relaxed, so that layers may mix two candidates, the best solution exchanges bytes for error at
//    one price in all layers. It is a bound, and the exact solutions next to it are within one
//    exchange of one layer.
// 2. What a candidate costs at that price beyond its layer's cheapest is what it takes the total
//    away from the bound, at least. Candidates that alone take it beyond the best known solution
//    are out: of hundreds of layers few have a choice left.
// 3. These are packed layer by layer. Of packings so far, one with more bytes and more error than
//    another is dropped, as is what the price excludes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "adapt/front.h"

namespace gradwire::adapt {
namespace {

/// Nothing is looked for that is better by less than this share of the bytes.
constexpr double kTolerance = 1e-4;
/// Sums of errors differ by the order of summation by less than this share.
constexpr double kRounding = 1e-9;
/// More packings are thinned out. Never reached with less than dozens of undecided layers.
constexpr std::size_t kMostPackings = 1024;

using Front = std::vector<Point>;
using Indices = std::vector<std::size_t>;  // by layer: a point of its front

/// One layer takes the next point of its hull: more bytes, less error.
struct Exchange {
  std::size_t layer;
  double bytes_per_error;
};

/// Points of all layers up to one of them, those that decided ones add to included.
struct Packing {
  double bytes;
  double error;
  std::uint32_t before;  // the packing of the layer before
  std::uint32_t point;
};

class Knapsack {
 public:
  Knapsack(std::span<const Layer> layers, double budget) : budget_(budget) {
    for (const Layer& layer : layers) {
      fronts_.push_back(front_of(layer));
      hulls_.push_back(hull_of(fronts_.back()));
    }
  }

  /// The best there is, and the finest where nothing meets the budget.
  Indices pack() {
    Indices finest;
    for (const Front& front : fronts_) finest.push_back(front.size() - 1);
    if (!(error_of(finest) <= budget_)) return finest;
    relax();
    use_slack();
    find_bound();
    if (allowance_ > 0) search();
    return best_;
  }

  const Front& front(std::size_t layer) const { return fronts_[layer]; }

 private:
  // In the order of layers, so that the same choices always have the same sum.
  double error_of(const Indices& points) const {
    double error = 0;
    for (std::size_t i = 0; i < points.size(); ++i) error += fronts_[i][points[i]].error;
    return error;
  }
  double bytes_of(const Indices& points) const {
    double bytes = 0;
    for (std::size_t i = 0; i < points.size(); ++i) bytes += fronts_[i][points[i]].bytes;
    return bytes;
  }

  std::vector<Exchange> exchanges() const {
    std::vector<Exchange> all;
    for (std::size_t i = 0; i < hulls_.size(); ++i) {
      for (std::size_t p = 1; p < hulls_[i].size(); ++p) {
        const Point& from = hulls_[i][p - 1];
        const Point& to = hulls_[i][p];
        all.push_back({i, (to.bytes - from.bytes) / (from.error - to.error)});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Exchange& a, const Exchange& b) {
      return a.bytes_per_error < b.bytes_per_error;
    });
    return all;
  }

  /// From the fewest bytes on, the cheapest `count` exchanges.
  Indices after(const std::vector<Exchange>& all, std::size_t count) const {
    Indices on_hull(hulls_.size(), 0);
    for (std::size_t i = 0; i < count; ++i) ++on_hull[all[i].layer];
    Indices points;
    for (std::size_t i = 0; i < on_hull.size(); ++i) {
      const auto same = [&](const Point& point) {
        return point.candidate == hulls_[i][on_hull[i]].candidate;
      };
      const auto at = std::find_if(fronts_[i].begin(), fronts_[i].end(), same);
      points.push_back(static_cast<std::size_t>(at - fronts_[i].begin()));
    }
    return points;
  }

  /// As many of the cheapest exchanges as the budget asks for; the last one has the price.
  void relax() {
    const std::vector<Exchange> all = exchanges();
    std::size_t too_few = 0, enough = all.size();
    if (error_of(after(all, 0)) <= budget_) enough = 0;
    while (enough > too_few + 1) {
      const std::size_t middle = (too_few + enough) / 2;
      (error_of(after(all, middle)) <= budget_ ? enough : too_few) = middle;
    }
    price_ = enough == 0 ? 0 : all[enough - 1].bytes_per_error;
    best_ = after(all, enough);
  }

  /// What the last exchange left of the budget lets others be taken back.
  void use_slack() {
    for (;;) {
      const double slack = budget_ * (1 - kRounding) - error_of(best_);
      double most = 0;
      std::size_t layer = 0, point = 0;
      for (std::size_t i = 0; i < best_.size(); ++i) {
        const Point& now = fronts_[i][best_[i]];
        for (std::size_t p = 0; p < best_[i]; ++p) {
          const Point& other = fronts_[i][p];
          if (other.error - now.error > slack || now.bytes - other.bytes <= most) continue;
          std::tie(most, layer, point) = std::tuple(now.bytes - other.bytes, i, p);
        }
      }
      if (most == 0) return;
      best_[layer] = point;
    }
  }

  double priced(const Point& point) const { return point.bytes + price_ * point.error; }

  /// No choices within the budget have fewer bytes than the bound.
  void find_bound() {
    double bound = -price_ * budget_;
    for (const Front& front : fronts_) {
      double least = std::numeric_limits<double>::infinity();
      for (const Point& point : front) least = std::min(least, priced(point));
      least_.push_back(least);
      bound += least;
    }
    allowance_ = (1 - kTolerance) * bytes_of(best_) - bound;
  }

  Indices undecided(std::size_t layer) const {
    const Front& front = fronts_[layer];
    Indices points;
    for (std::size_t p = 0; p < front.size(); ++p) {
      if (priced(front[p]) - least_[layer] <= allowance_) points.push_back(p);
    }
    return points;
  }

  void search() {
    std::vector<Indices> points;
    std::vector<double> least_errors_after(fronts_.size() + 1, 0);
    for (std::size_t i = 0; i < fronts_.size(); ++i) points.push_back(undecided(i));
    for (std::size_t i = fronts_.size(); i-- > 0;) {
      const double least = points[i].empty() ? 0 : fronts_[i][points[i].back()].error;
      least_errors_after[i] = least_errors_after[i + 1] + least;
    }
    std::vector<std::vector<Packing>> packings = {{{0, 0, 0, 0}}};
    double priced_before = 0;
    for (std::size_t i = 0; i < fronts_.size(); ++i) {
      priced_before += least_[i];
      const double most_priced = priced_before + allowance_;
      const double most_error = budget_ * (1 + kRounding) - least_errors_after[i + 1];
      packings.push_back(extend(packings.back(), i, points[i], most_priced, most_error));
      if (packings.back().empty()) return;  // what is known is the best
    }
    take_best(packings);
  }

  std::vector<Packing> extend(const std::vector<Packing>& before, std::size_t layer,
                              const Indices& points, double most_priced, double most_error) const {
    std::vector<Packing> all;
    for (const std::size_t p : points) {
      const Point& point = fronts_[layer][p];
      const auto middle = static_cast<std::ptrdiff_t>(all.size());
      for (std::size_t b = 0; b < before.size(); ++b) {
        const double bytes = before[b].bytes + point.bytes;
        const double error = before[b].error + point.error;
        if (error > most_error || bytes + price_ * error > most_priced) continue;
        all.push_back({bytes, error, static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(p)});
      }
      std::inplace_merge(all.begin(), all.begin() + middle, all.end(), lighter);
    }
    return thinned(without_dominated(all));
  }

  static bool lighter(const Packing& a, const Packing& b) {
    return std::tie(a.bytes, a.error) < std::tie(b.bytes, b.error);
  }

  static std::vector<Packing> without_dominated(const std::vector<Packing>& all) {
    std::vector<Packing> kept;
    for (const Packing& packing : all) {
      if (kept.empty() || packing.error < kept.back().error) kept.push_back(packing);
    }
    return kept;
  }

  /// Of packings with nearly as many bytes, the one with the smallest error, the last, stays.
  static std::vector<Packing> thinned(std::vector<Packing> all) {
    if (all.size() <= kMostPackings) return all;
    const double first = all.front().bytes;
    const double width = (all.back().bytes - first) / static_cast<double>(kMostPackings);
    const auto interval = [&](const Packing& p) { return std::floor((p.bytes - first) / width); };
    std::vector<Packing> kept;
    for (const Packing& packing : all) {
      const bool same = !kept.empty() && interval(kept.back()) == interval(packing);
      if (same) kept.back() = packing;
      if (!same) kept.push_back(packing);
    }
    return kept;
  }

  void take_best(const std::vector<std::vector<Packing>>& packings) {
    const std::vector<Packing>& last = packings.back();
    const auto at = std::find_if(last.begin(), last.end(),
                                 [&](const Packing& packing) { return packing.error <= budget_; });
    if (at == last.end() || !(at->bytes < bytes_of(best_))) return;
    std::size_t packing = static_cast<std::size_t>(at - last.begin());
    for (std::size_t i = fronts_.size(); i-- > 0;) {
      best_[i] = packings[i + 1][packing].point;
      packing = packings[i + 1][packing].before;
    }
  }

  const double budget_;
  std::vector<Front> fronts_;
  std::vector<Front> hulls_;
  double price_ = 0;           // bytes for a unit of error
  double allowance_ = 0;       // how far from the bound what is worth finding may be
  std::vector<double> least_;  // by layer: bytes and priced error of its cheapest point
  Indices best_;
};

Choices solve(std::span<const Layer> layers, double budget) {
  Knapsack knapsack(layers, budget);
  const Indices points = knapsack.pack();
  Choices choices;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    choices.push_back(layers[i].candidates[knapsack.front(i)[points[i]].candidate]);
  }
  return choices;
}

}  // namespace

const Solver kDp = {.name = "dp",
                    .summary = "the fewest bytes within the budget, as L-GreCo's knapsack",
                    .keeps_budget = true,
                    .solve = solve};

}  // namespace gradwire::adapt
