#include "plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "collective/algorithms.h"
#include "gradwire/error.h"
#include "plan/forecast.h"
#include "plan/route.h"

namespace gradwire {
namespace {

/// The option of a name, for tensors that a codec takes or for exact ones.
Option option_of(std::string_view route, bool exact) {
  for (Option& option : all_options()) {
    if (option.has_codec() != exact && name_of(option) == route) return std::move(option);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("no forecast knows the route {} of {} tensors: gradwire schedule --list "
                          "shows those that it knows",
                          route, exact ? "exact" : "compressed"));
}

/// Chains of ways by elements, made once each.
class Chains {
 public:
  Chains(const Cluster& cluster, const Costs& costs)
      : cluster_(cluster), costs_(costs), maker_(costs, cluster) {}

  const Chain& of(const Way& way, std::size_t elements) {
    const auto [found, is_new] = chains_.try_emplace({way.text(), elements});
    if (is_new) found->second = make(way, elements);
    return found->second;
  }

 private:
  Chain make(const Way& way, std::size_t elements) const {
    const Option option = option_of(route_of(way, elements), way.codec == Way{}.codec);
    return maker_.make(loads_of(option, 1, cluster_), way.codec, costs_.codec(way.codec), elements);
  }

  std::string route_of(const Way& way, std::size_t elements) const {
    if (!way.route.empty()) return way.route;
    Traffic traffic;
    traffic.add(way.codec, elements);
    return std::string(cheapest_route(traffic, cluster_.ranks()).algorithm);
  }

  const Cluster cluster_;
  const Costs& costs_;
  const ChainMaker maker_;
  std::map<std::pair<std::string, std::size_t>, Chain> chains_;
};

}  // namespace

Prediction predict(const Workload& workload, const Cluster& cluster, const Costs& costs,
                   std::span<const Way> ways) {
  Chains made(cluster, costs);
  std::vector<const Chain*> chains;
  Prediction prediction;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    chains.push_back(&made.of(ways[i], workload.tensors[i].elements));
    const auto busy = busy_seconds(*chains.back());
    std::ranges::transform(busy, prediction.busy_seconds, prediction.busy_seconds.begin(),
                           std::plus<>());
  }
  Forecast forecast(workload, {costs.shares_compute(), costs.interference});
  forecast.set(chains);
  prediction.step_seconds = forecast.step_seconds();
  prediction.exposed_seconds = forecast.exposed_seconds();
  return prediction;
}

std::vector<Way> ways_of(const Plan& plan, const Workload& workload, std::uint64_t step) {
  std::vector<Way> ways;
  for (const WorkloadTensor& tensor : workload.tensors) {
    ways.push_back(stage_at(plan.stages_of(tensor.name), step).way);
  }
  return ways;
}

}  // namespace gradwire
