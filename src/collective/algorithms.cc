#include "collective/algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>

#include "collective/lifetimes.h"
#include "collective/travel.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

using Kind = Hop::Kind;

Algorithm named(std::string name, std::string summary, const char* option) {
  return {std::move(name), std::move(summary), Option::parse(option).legs()};
}

/// Those of which at least one makes or passes on as many messages as any does: the ends of all
/// circles, and one in the middle of a tree.
std::set<Rank> busiest(const Ranks& ranks) {
  std::set<Rank> result;
  for (const Rank size : {ranks.count, std::max<Rank>(1, ranks.per_host)}) {
    for (const Rank rank : {Rank{0}, size - 1, std::bit_floor(size - 1), size, size / 2}) {
      if (rank < ranks.count) result.insert(rank);
    }
  }
  return result;
}

}  // namespace

std::string Algorithm::refusal(Collective collective, const Ranks& ranks) const {
  const std::string reason = refusal_of(legs, collective, ranks);
  return reason.empty() ? "" : fmt::format("{} cannot be taken: {}", name, reason);
}

Schedule Algorithm::make(Collective collective, const Ranks& ranks, Rank me) const {
  return make_schedule(legs, collective, ranks, me);
}

std::uint32_t Algorithm::copies(Collective collective, const Ranks& ranks) const {
  std::uint32_t most = 1;
  for (const Rank rank : busiest(ranks)) {
    most = std::max(most, most_copies(make(collective, ranks, rank)));
  }
  return most;
}

bool Algorithm::has_exact() const { return std::ranges::any_of(legs, &Leg::exact); }

bool Algorithm::replicates(Collective collective, const Ranks& ranks) const {
  return std::ranges::any_of(make(collective, ranks, 0).steps, &Step::replicated);
}

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> kAll{
      named("sra", "owners reduce, then send to all; two encodings per number",
            "encode-all_to_all-decode-encode-all_gather-decode"),
      {"ring",
       "partial sums travel around; two neighbours per rank",
       {{false, {{Kind::around, Level::all}}}}},
      {"tree",
       "partial sums climb a tree, and sums come back; few messages",
       {{false, {{Kind::up, Level::all}}}, {false, {{Kind::from_root, Level::all}}}}},
      named("allgather", "everything to everybody; one encoding, one hop",
            "encode-all_gather-decode"),
      named("hierarchical", "reduce inside hosts, across them, and gather inside",
            "encode-inside.all_to_all-decode-encode-between.all_to_all-decode-"
            "encode-between.all_gather-inside.all_gather-decode"),
      named("hierarchical-exact", "the same, with exact messages until they leave the host",
            "inside.reduce_scatter-encode-between.all_to_all-decode-"
            "encode-between.all_gather-inside.all_gather-decode"),
  };
  return kAll;
}

Algorithm find_algorithm(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == name) return algorithm;
    names.push_back(algorithm.name);
  }
  if (name.find_first_of("-._") == std::string_view::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no algorithm '{}'; take one of {}, or write one out, as in "
                            "'encode-all_to_all-decode-encode-all_gather-decode'",
                            name, fmt::join(names, ", ")));
  }
  const Option option = Option::parse(name);
  if (option.needs_second_device()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("'{}' encodes on a second device, and there is none: leave out @other", name));
  }
  return {std::string(name), "", option.legs()};
}

Algorithm find_algorithm(std::string_view name, Collective collective, const Ranks& ranks) {
  Algorithm found = find_algorithm(name);
  const std::string refusal = found.refusal(collective, ranks);
  if (refusal.empty()) return found;
  std::vector<std::string_view> usable;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.refusal(collective, ranks).empty()) usable.push_back(algorithm.name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}; take one of {}", refusal, fmt::join(usable, ", ")));
}

}  // namespace gradwire
