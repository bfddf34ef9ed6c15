#include "plan/prediction.h"

#include <algorithm>
#include <string>

#include "collective/algorithms.h"
#include "plan/joined.h"
#include "plan/route.h"

namespace gradwire {
namespace {

constexpr double kExactBytes = 4;

using Work = PredictedSpan::Work;

/// How one group of tensors travels.
struct Journey {
  std::vector<Load> loads;  // of one element
  double bytes_per_element;
  Chain chain;

  double bytes_of(const Load& load) const { return load.exact ? kExactBytes : bytes_per_element; }
};

std::vector<Load> loads_of_way(const Way& way, std::size_t elements, const Cluster& cluster) {
  std::string route = way.route;
  if (route.empty()) {
    Traffic traffic;
    traffic.add(way.codec, elements);
    route = cheapest_route(traffic, cluster.ranks()).algorithm;
  }
  return loads_of(find_algorithm(route).legs, 1, cluster);
}

/// A step in which every group of tensors travels by the way of its leader.
class TrainingStep {
 public:
  TrainingStep(const Workload& workload, const Cluster& cluster, const Costs& costs,
               std::span<const Way> ways)
      : cluster_(cluster),
        joined_(join_small(workload)),
        forecast_(joined_.workload, {costs.shares_compute(), costs.interference}) {
    const ChainMaker maker(costs, cluster);
    for (std::size_t i = 0; i < joined_.workload.tensors.size(); ++i) {
      const std::size_t elements = joined_.workload.tensors[i].elements;
      const Way& way = ways[joined_.leader_of[i]];
      const MeasuredCodec& measured = costs.codec(way.codec);
      Journey journey{loads_of_way(way, elements, cluster), measured.bytes_per_element, {}};
      journey.chain = maker.make(journey.loads, way.codec, measured, elements);
      journeys_.push_back(std::move(journey));
    }
    std::vector<const Chain*> chains;
    for (const Journey& journey : journeys_) chains.push_back(&journey.chain);
    forecast_.set(chains);
  }

  Prediction prediction() const {
    Prediction result{.step_seconds = forecast_.step_seconds(),
                      .exposed_seconds = forecast_.exposed_seconds()};
    for (std::size_t i = 0; i < journeys_.size(); ++i) {
      const Journey& journey = journeys_[i];
      const auto busy = busy_seconds(journey.chain);
      for (std::size_t each = 0; each < kResources; ++each) {
        result.busy_seconds[each] += busy[each];
      }
      const auto elements = static_cast<double>(joined_.workload.tensors[i].elements);
      for (const Load& load : journey.loads) {
        const double bytes = load.total / cluster_.ranks() * elements * journey.bytes_of(load);
        if (load.kind == Load::Kind::inside) result.bytes_inside += bytes;
        if (load.kind == Load::Kind::between) result.bytes_between += bytes;
      }
    }
    return result;
  }

  std::vector<PredictedSpan> spans() const {
    std::vector<std::size_t> small(joined_.leader_of.size());
    for (const std::size_t group : joined_.group_of) ++small[group];
    std::vector<PredictedSpan> spans;
    for (const Interval& interval : forecast_.timeline()) {
      const std::size_t group = interval.tensor;
      PredictedSpan span{work_of(interval), interval, small[group] - 1, 0};
      span.interval.tensor = joined_.leader_of[group];
      if (interval.kind == Interval::Kind::task) span.bytes = bytes_of(interval, span.work);
      spans.push_back(span);
    }
    return spans;
  }

 private:
  const Load& load_of(const Interval& interval) const {
    const Journey& journey = journeys_[interval.tensor];
    return journey.loads[journey.chain.tasks[interval.task].load];
  }

  Work work_of(const Interval& interval) const {
    if (interval.kind == Interval::Kind::computing) return Work::computing;
    if (interval.kind == Interval::Kind::preparing) return Work::preparing;
    if (interval.resource == Resource::inside) return Work::inside;
    if (interval.resource == Resource::sending) return Work::send;
    if (interval.resource == Resource::receiving) return Work::receive;
    const Load::Kind kind = load_of(interval).kind;
    if (kind == Load::Kind::encode) return Work::encode;
    return kind == Load::Kind::decode ? Work::decode : Work::handling;
  }

  double bytes_of(const Interval& interval, Work work) const {
    const Journey& journey = journeys_[interval.tensor];
    const Load& load = load_of(interval);
    double elements = 0;
    if (work == Work::inside) elements = std::max(load.sent, load.received);
    if (work == Work::send) elements = load.sent;
    if (work == Work::receive) elements = load.received;
    if (work == Work::handling) elements = load.of_rank;
    return elements * static_cast<double>(joined_.workload.tensors[interval.tensor].elements) /
           journey.chain.pieces * journey.bytes_of(load);
  }

  const Cluster cluster_;
  const Joined joined_;
  std::vector<Journey> journeys_;
  Forecast forecast_;
};

}  // namespace

std::vector<Way> ways_of(const Plan& plan, const Workload& workload, std::uint64_t step) {
  std::vector<Way> ways;
  for (const WorkloadTensor& tensor : workload.tensors) {
    ways.push_back(stage_at(plan.stages_of(tensor.name), step).way);
  }
  return ways;
}

Prediction predict(const Workload& workload, const Cluster& cluster, const Costs& costs,
                   std::span<const Way> ways) {
  return TrainingStep(workload, cluster, costs, ways).prediction();
}

std::vector<PredictedSpan> predicted_spans(const Workload& workload, const Cluster& cluster,
                                           const Costs& costs, std::span<const Way> ways) {
  return TrainingStep(workload, cluster, costs, ways).spans();
}

}  // namespace gradwire
