// CGX's choice: layers that are alike in size and norm form a cluster, and the clusters take more
// bits the larger their norm is.
//
// As published, what is lost follows from the candidates: there is no budget. The norm of a layer
// is that of all its numbers, where CGX takes the 100 largest for cheapness.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "adapt/front.h"
#include "base/random_stream.h"

namespace gradwire::adapt {
namespace {

constexpr int kMostRounds = 100;
/// Beginnings differ in where clusters end; the tightest clusters of these are taken.
constexpr std::uint64_t kBeginnings = 4;
constexpr std::uint64_t kSeed = 1;

using Place = std::array<double, 2>;  // elements and norm, each in standard deviations

double squared_distance(const Place& a, const Place& b) {
  const double x = a[0] - b[0], y = a[1] - b[1];
  return x * x + y * y;
}

/// Divides by the standard deviation, so that sizes and norms count alike.
void whiten(std::vector<Place>& places, std::size_t dimension) {
  const auto count = static_cast<double>(places.size());
  double mean = 0, variance = 0;
  for (const Place& place : places) mean += place[dimension] / count;
  for (const Place& place : places) {
    const double difference = place[dimension] - mean;
    variance += difference * difference / count;
  }
  if (!(variance > 0)) return;
  for (Place& place : places) place[dimension] /= std::sqrt(variance);
}

struct Clusters {
  std::vector<Place> centres;
  std::vector<std::size_t> members;  // by place: its cluster
  double spread = 0;
};

void assign(const std::vector<Place>& places, Clusters& clusters) {
  clusters.spread = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < clusters.centres.size(); ++c) {
      const double distance = squared_distance(places[i], clusters.centres[c]);
      if (!(distance < least)) continue;
      least = distance;
      clusters.members[i] = c;
    }
    clusters.spread += least;
  }
}

/// A cluster that lost all its members stays where it is.
void move_centres(const std::vector<Place>& places, Clusters& clusters) {
  std::vector<Place> sums(clusters.centres.size(), Place{});
  std::vector<double> counts(clusters.centres.size(), 0);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t c = clusters.members[i];
    sums[c][0] += places[i][0];
    sums[c][1] += places[i][1];
    ++counts[c];
  }
  for (std::size_t c = 0; c < sums.size(); ++c) {
    if (counts[c] > 0) clusters.centres[c] = {sums[c][0] / counts[c], sums[c][1] / counts[c]};
  }
}

/// As kmeans++ begins: each centre is a place, drawn by its squared distance from the centres
/// before. Ends early when every place is a centre.
std::vector<Place> first_centres(const std::vector<Place>& places, std::size_t count,
                                 std::uint64_t beginning) {
  const std::uint64_t key = fold({.seed = kSeed, .step = beginning});
  std::vector<Place> centres = {places[draw(key, 0) % places.size()]};
  std::vector<double> distances(places.size(), std::numeric_limits<double>::infinity());
  while (centres.size() < count) {
    double sum = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      distances[i] = std::min(distances[i], squared_distance(places[i], centres.back()));
      sum += distances[i];
    }
    if (!(sum > 0)) break;
    double left = sum * (draw(key, centres.size()) + 0.5) / 65536;
    std::size_t drawn = 0;
    for (std::size_t i = 0; i < places.size() && left > 0; ++i) {
      if (distances[i] > 0) drawn = i;
      left -= distances[i];
    }
    centres.push_back(places[drawn]);
  }
  return centres;
}

Clusters clusters_of(const std::vector<Place>& places, std::size_t count, std::uint64_t beginning) {
  Clusters clusters{first_centres(places, count, beginning),
                    std::vector<std::size_t>(places.size(), 0)};
  assign(places, clusters);
  for (int round = 0; round < kMostRounds; ++round) {
    const double before = clusters.spread;
    move_centres(places, clusters);
    assign(places, clusters);
    if (!(clusters.spread < before)) break;
  }
  return clusters;
}

/// By cluster, how many have a smaller norm.
std::vector<std::size_t> ranks_of(const std::vector<Place>& centres) {
  std::vector<std::size_t> order(centres.size()), ranks(centres.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return centres[a][1] < centres[b][1]; });
  for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i]] = i;
  return ranks;
}

/// By place, its cluster's rank from the last cluster on: 0 for that of the largest norm.
std::vector<std::size_t> ranks_from_last(std::vector<Place> places, std::size_t count) {
  whiten(places, 0);
  whiten(places, 1);
  Clusters best = clusters_of(places, count, 0);
  for (std::uint64_t beginning = 1; beginning < kBeginnings; ++beginning) {
    Clusters other = clusters_of(places, count, beginning);
    if (other.spread < best.spread) best = std::move(other);
  }
  const std::vector<std::size_t> ranks = ranks_of(best.centres);
  std::vector<std::size_t> from_last;
  for (const std::size_t c : best.members) from_last.push_back(ranks.size() - 1 - ranks[c]);
  return from_last;
}

/// With fewer different layers than candidates, the candidates of the most bits are taken.
Choices solve(std::span<const Layer> layers, double) {
  std::vector<Place> places;
  std::size_t most = 0;
  for (const Layer& layer : layers) {
    check_candidates(layer);
    most = std::max(most, layer.candidates.size());
    if (counts(layer)) {
      places.push_back({static_cast<double>(layer.elements), std::sqrt(layer.energy)});
    }
  }
  std::vector<std::size_t> ranks;
  if (!places.empty()) ranks = ranks_from_last(std::move(places), most);
  Choices choices;
  std::size_t next = 0;
  for (const Layer& layer : layers) {
    const std::size_t last = layer.candidates.size() - 1;
    const std::size_t rank = counts(layer) ? ranks[next++] : 0;
    choices.push_back(layer.candidates[last - std::min(rank, last)]);
  }
  return choices;
}

}  // namespace

const Solver kKmeans = {.name = "kmeans",
                        .summary = "layers alike in size and norm share bits, as in CGX",
                        .keeps_budget = false,
                        .solve = solve};

}  // namespace gradwire::adapt
