#include "plan/route.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "collective/algorithms.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr std::size_t kSmallBytes = 32768;  // up to here one hop is worth sending everything

void check_routes(std::span<const Stage> stages, const std::string& layers, const Ranks& ranks) {
  for (const Stage& stage : stages) {
    if (stage.way.route.empty()) continue;
    try {
      static_cast<void>(find_algorithm(stage.way.route, Collective::all_reduce, ranks));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("the route of {}: {}", layers, error.what()));
    }
  }
}

}  // namespace

Route cheapest_route(const Traffic& traffic, std::uint32_t ranks) noexcept {
  const std::size_t to_all = bytes_to_all(traffic.data, ranks);
  const std::size_t by_owners = bytes_by_owners(traffic.data, traffic.sums, ranks);
  const bool one_hop = bytes_to_all(traffic.numbers, ranks) <= kSmallBytes || to_all < by_owners;
  return one_hop ? Route{"allgather", to_all} : Route{"sra", by_owners};
}

void check_routes(const Plan& plan, const Ranks& ranks) {
  for (const LayerPlan& entry : plan.layers) check_routes(entry.stages, entry.layers, ranks);
  check_routes(plan.otherwise, "the plan's default", ranks);
}

}  // namespace gradwire
