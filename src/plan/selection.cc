#include "plan/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "collective/algorithms.h"
#include "plan/candidates.h"
#include "plan/joined.h"
#include "plan/prices.h"
#include "plan/search.h"

namespace gradwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kBoundRounds = 1000;  // of prices: more gain less than 0.1 %

WayLimits limits_of(const SelectionOptions& options) {
  return {.codecs = options.codecs,
          .most_encodings = options.most_encodings,
          .most_error = options.most_error,
          .options = options.options};
}

Sharing sharing_of(const Costs& costs) { return {costs.shares_compute(), costs.interference}; }

/// Whether what it does not send would be lost for good without.
bool needs_feedback(const Codec& codec) {
  const Traits traits = codec.traits();
  return !traits.lossless && (!traits.unbiased || traits.sparse);
}

/// Why a tensor goes as it goes, in words.
std::string reason_of(const Search& search, Candidates& candidates, std::size_t tensor) {
  const Candidate& exact = search.fastest_exact(tensor);
  const double now = search.forecast().step_seconds();
  if (!search.choice(tensor).exact()) {
    return fmt::format("saves {:.3g} ms of a step",
                       1e3 * (search.forecast().with(tensor, candidates.chain_of(exact)) - now));
  }
  if (search.forecast().before_bubble(tensor)) return "hidden behind computing";
  const auto& front = search.front(tensor);
  const auto lossy = std::ranges::find_if_not(front, &Candidate::exact);
  if (lossy == front.end()) return "no codec makes its exchange shorter";
  const auto codec = static_cast<std::size_t>(Resource::codec);
  return lossy->busy[codec] > exact.seconds ? "encoding takes longer than sending"
                                            : "another exchange takes longer";
}

}  // namespace

std::vector<Codec> codecs_without_feedback(const Costs& costs) {
  std::vector<Codec> codecs;
  for (const auto& [spec, measured] : costs.codecs) {
    Codec codec = Codec::parse(spec);
    if (!codec.traits().lossless && !needs_feedback(codec)) codecs.push_back(std::move(codec));
  }
  return codecs;
}

Way Choice::way() const {
  Way way;
  way.codec = codec;
  if (needs_feedback(codec)) way.feedback = Feedback{};
  way.route = name_of(option);
  return way;
}

Plan plan_of(const Workload& workload, const Selection& selection) {
  Plan plan;
  for (std::size_t i = 0; i < selection.choices.size(); ++i) {
    const Choice& choice = selection.choices[i];
    plan.layers.push_back({workload.tensors[i].name, {{0, choice.way(), choice.reason}}});
  }
  return plan;
}

Selection select(const Workload& workload, const Cluster& cluster, const Costs& costs,
                 const SelectionOptions& options) {
  const Joined joined = join_small(workload);
  const WayLimits limits = limits_of(options);
  Candidates candidates(cluster, costs, limits);
  Search search(joined.workload, candidates, sharing_of(costs),
                options.most_compressions.value_or(Search::kNoLimit));
  search.run();
  Selection selection{{}, search.forecast().step_seconds(), search.forecast().exposed_seconds()};
  for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
    const std::size_t group = joined.group_of[i];
    const Candidate& choice = search.choice(group);
    const bool small = joined.leader_of[group] != i;
    const bool exact = small || choice.exact();
    selection.choices.push_back(
        {candidates.option_of(choice), exact ? Codec::parse("none") : *choice.codec,
         small
             ? fmt::format("small: travels with {}", workload.tensors[joined.leader_of[group]].name)
             : reason_of(search, candidates, group)});
  }
  return selection;
}

Baselines baselines(const Workload& workload, const Cluster& cluster, const Costs& costs,
                    const SelectionOptions& options) {
  const Workload joined = join_small(workload).workload;  // as whatever is compared with it
  const WayLimits limits = limits_of(options);
  Candidates candidates(cluster, costs, limits);
  Search search(joined, candidates, sharing_of(costs));
  Baselines result;
  result.plain_seconds = search.take_uniform(true, kNever).value_or(kNever);
  result.all_compressed_seconds = search.take_uniform(false, kNever).value_or(kNever);
  std::vector<const std::vector<Candidate>*> fronts;
  for (const WorkloadTensor& tensor : joined.tensors) {
    fronts.push_back(&candidates.front(tensor.elements));
  }
  Prices prices(joined, sharing_of(costs), fronts);
  prices.adapt(kBoundRounds);
  result.least_seconds = prices.least_seconds();
  Costs free = costs.without_other_device();
  for (auto& [spec, codec] : free.codecs) {
    codec.encode = codec.decode = codec.preparation = CostTable();
  }
  result.bound_seconds = select(workload, cluster, free, options).step_seconds;
  return result;
}

}  // namespace gradwire
