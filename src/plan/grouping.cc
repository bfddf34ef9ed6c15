#include "plan/grouping.h"

#include <fmt/format.h>

#include <map>

#include "gradwire/error.h"
#include "plan/route.h"

namespace gradwire {
namespace {

std::string algorithm_for(const Traveller& tensor, const Traffic& traffic, const std::string& usual,
                          std::uint32_t ranks) {
  if (!tensor.route.empty()) return tensor.route;
  if (usual != "auto") return usual;
  return std::string(cheapest_route(traffic, ranks).algorithm);
}

}  // namespace

std::vector<Group> group_for_sums(std::span<const Traveller> tensors, const std::string& usual,
                                  std::uint32_t ranks) {
  struct Exact {
    std::size_t group;
    Traffic traffic;
  };
  std::vector<Group> groups;
  std::map<std::string, Exact> exact;  // by route
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    const Traveller& tensor = tensors[place];
    const bool lossless = tensor.codec.traits().lossless;
    const auto line = exact.find(tensor.route);
    const bool joins = lossless && line != exact.end();
    const std::size_t group = joins ? line->second.group : groups.size();
    if (!joins) groups.emplace_back();
    if (lossless && !joins) exact[tensor.route] = {group, {}};
    groups[group].tensors.push_back(place);
    Traffic alone;
    Traffic& traffic = lossless ? exact[tensor.route].traffic : alone;
    traffic.add(tensor.codec, tensor.count, tensor.dtype);
    groups[group].algorithm = algorithm_for(tensor, traffic, usual, ranks);
  }
  if (groups.empty()) groups.push_back({.algorithm = "sra"});  // of nothing: all ranks meet
  return groups;
}

Group group_all(std::span<const Traveller> tensors, Collective collective) {
  Group group{.algorithm = has_owners(collective) ? "sra" : "tree"};
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    group.tensors.push_back(place);
    if (tensors[place].route == tensors[0].route) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("tensors of one {} ask for the routes '{}' and '{}': they travel together, by "
                    "one; make two calls",
                    name_of(collective), tensors[0].route, tensors[place].route));
  }
  if (!tensors.empty() && !tensors[0].route.empty()) group.algorithm = tensors[0].route;
  return group;
}

}  // namespace gradwire
