#include "plan/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "collective/algorithms.h"
#include "plan/joined.h"

namespace gradwire {
namespace {

constexpr double kNoticed = 1e-9;      // seconds: what is less is no gain
constexpr double kWorthARound = 1e-3;  // of a step, by looking at every tensor again
constexpr double kSpared = 1e-6;       // of a step, that exact messages may take longer
constexpr int kMostRounds = 5;
constexpr std::size_t kTryAllEvery = 8;  // tensors of one size
constexpr double kNever = std::numeric_limits<double>::infinity();

/// What resources cost, in the order of `Resource`, where something is to be cheapest.
constexpr std::array<std::array<double, kResources>, 4> kRespects{
    {{1, 1, 1, 1, 1}, {1, 1, 1, 10, 10}, {10, 10, 1, 1, 1}, {0.01, 0.01, 0.1, 1, 1}}};

/// An option with what it asks of everybody, per element.
struct Template {
  Option option;
  std::vector<Load> loads;
  std::uint32_t encodings;
};

/// Options that these hosts can tell apart: what differs only in hops that nobody makes is the
/// same.
std::vector<Template> templates_for(const Cluster& cluster, const SelectionOptions& options) {
  std::vector<Template> result;
  for (Option& option : all_options()) {
    const std::uint32_t encodings = option.encodings();
    if (encodings > options.most_encodings || (encodings > 0 && options.codecs.empty())) continue;
    std::vector<Load> loads = loads_of(option, 1, cluster);
    const auto same = [&](const Template& each) { return each.loads == loads; };
    if (std::ranges::any_of(result, same)) continue;
    result.push_back({std::move(option), std::move(loads), encodings});
  }
  return result;
}

const Codec& exact_codec() {
  static const Codec codec = Codec::parse("none");
  return codec;
}

const MeasuredCodec kNothing{};

/// One way for tensors of one size.
struct Candidate {
  const Template* of;
  const Codec* codec;  // null of exact ones
  Chain chain;
  std::array<double, kResources> busy;
  double seconds;  // of the chain, if nobody else were there

  bool exact() const { return codec == nullptr; }
};

/// Whether a second one needs at least as much of everything.
bool beats(const Candidate& a, const Candidate& b) {
  if (a.of->encodings > b.of->encodings || a.seconds > b.seconds) return false;
  for (std::size_t i = 0; i < kResources; ++i) {
    if (a.busy[i] > b.busy[i]) return false;
  }
  return true;
}

using Front = std::vector<Candidate>;

/// Candidates that nobody beats, exact ones first. The first is the fastest exact one.
class Fronts {
 public:
  Fronts(const Cluster& cluster, const Costs& costs, const SelectionOptions& options)
      : options_(options), templates_(templates_for(cluster, options)), maker_(costs, cluster) {
    for (const Codec& codec : options_.codecs) measured_.push_back(&costs.codec(codec));
  }

  const Front& of(std::size_t elements) {
    auto& front = fronts_[elements];
    if (!front) front = std::make_unique<Front>(make(elements));
    return *front;
  }

  /// Calls visit(candidate of size) for every option and codec, also those that others beat.
  template <class Visit>
  void each_way(Visit visit) const {
    for (const Template& each : templates_) {
      if (each.encodings == 0) {
        visit([&](std::size_t elements) { return candidate(each, nullptr, kNothing, elements); });
        continue;
      }
      for (std::size_t i = 0; i < measured_.size(); ++i) {
        visit([&](std::size_t elements) {
          return candidate(each, &options_.codecs[i], *measured_[i], elements);
        });
      }
    }
  }

 private:
  Front make(std::size_t elements) const {
    Front all;
    each_way([&](const auto& of_size) { all.push_back(of_size(elements)); });
    std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
      return std::pair(a.of->encodings, a.seconds) < std::pair(b.of->encodings, b.seconds);
    });
    Front front;
    for (Candidate& each : all) {
      const auto beaten = [&](const Candidate& other) { return beats(other, each); };
      if (std::ranges::none_of(front, beaten)) front.push_back(std::move(each));
    }
    return front;
  }

  Candidate candidate(const Template& each, const Codec* codec, const MeasuredCodec& measured,
                      std::size_t elements) const {
    Chain chain =
        maker_.make(each.loads, codec == nullptr ? exact_codec() : *codec, measured, elements);
    const auto busy = busy_seconds(chain);
    const double seconds = seconds_alone(chain);
    return {&each, codec, std::move(chain), busy, seconds};
  }

  const SelectionOptions& options_;
  const std::vector<Template> templates_;
  const ChainMaker maker_;
  std::vector<const MeasuredCodec*> measured_;
  std::map<std::size_t, std::unique_ptr<Front>> fronts_;
};

// ---------------------------------------------------------------------------------------------

class Selector {
 public:
  Selector(const Workload& workload, const Cluster& cluster, const Costs& costs,
           const SelectionOptions& options)
      : workload_(workload),
        fronts_(cluster, costs, options),
        forecast_(workload, {costs.shares_compute(), costs.interference}) {
    for (const WorkloadTensor& tensor : workload.tensors) {
      fronts_of_.push_back(&fronts_.of(tensor.elements));
    }
    begin_with([](const Candidate& each) { return each.exact() ? each.seconds : kNever; });
  }

  /// From where all is exact, and from the best of some where all tensors go by what is cheapest in
  /// one respect: changes of one tensor alone do not lead from everywhere to the best.
  void run() {
    const std::vector<std::size_t> order = by_size_and_last_ready();
    descend(order);
    const auto exact_first = chosen_;
    const double seconds = forecast_.step_seconds();
    std::vector<const Candidate*> start;
    double least = kNever;
    for (const auto& weights : kRespects) {
      begin_with([&](const Candidate& each) {
        return std::inner_product(weights.begin(), weights.end(), each.busy.begin(), 0.0);
      });
      if (forecast_.step_seconds() >= least) continue;
      least = forecast_.step_seconds();
      start = chosen_;
    }
    each_alike([&] {
      if (forecast_.step_seconds() >= least) return;
      least = forecast_.step_seconds();
      start = chosen_;
      alike_best_ = std::move(alike_);
    });
    set(start);
    descend(order);
    if (forecast_.step_seconds() >= seconds) set(exact_first);
    spare(order);
  }

  /// Chooses every option and codec for all tensors alike, one after the other, and calls visit().
  template <class Visit>
  void each_alike(Visit visit) {
    fronts_.each_way([&](const auto& of_size) {
      alike_.clear();
      std::vector<const Candidate*> chosen;
      for (const WorkloadTensor& tensor : workload_.tensors) {
        auto& candidate = alike_[tensor.elements];
        if (!candidate) candidate = std::make_unique<Candidate>(of_size(tensor.elements));
        chosen.push_back(candidate.get());
      }
      set(chosen);
      visit();
    });
  }

  const Candidate& choice(std::size_t tensor) const { return *chosen_[tensor]; }
  const Forecast& forecast() const { return forecast_; }

  /// Why a tensor goes as it goes, in words.
  std::string reason(std::size_t tensor) const {
    const Front& front = *fronts_of_[tensor];
    const Candidate& exact = front.front();
    const double now = forecast_.step_seconds();
    if (!choice(tensor).exact()) {
      return fmt::format("saves {:.3g} ms of a step",
                         1e3 * (forecast_.with(tensor, exact.chain) - now));
    }
    if (forecast_.before_bubble(tensor)) return "hidden behind computing";
    const auto lossy = std::ranges::find_if_not(front, &Candidate::exact);
    if (lossy == front.end()) return "no codec makes its exchange shorter";
    const auto codec = static_cast<std::size_t>(Resource::codec);
    return lossy->busy[codec] > exact.seconds ? "encoding takes longer than sending"
                                              : "another exchange takes longer";
  }

 private:
  /// The first of the cheapest candidates for all tensors.
  template <class Price>
  void begin_with(Price price) {
    std::vector<const Candidate*> chosen;
    for (const Front* front : fronts_of_) {
      chosen.push_back(&*std::ranges::min_element(*front, {}, price));
    }
    set(chosen);
  }
  void set(const std::vector<const Candidate*>& chosen) {
    chosen_ = chosen;
    std::vector<const Chain*> chains;
    for (const Candidate* each : chosen) chains.push_back(&each->chain);
    forecast_.set(chains);
  }

  void descend(const std::vector<std::size_t>& order) {
    for (int round = 0; round < kMostRounds; ++round) {
      const double before = forecast_.step_seconds();
      for (const std::size_t tensor : order) {
        if (can_gain(tensor)) improve(tensor);
      }
      if (forecast_.step_seconds() > before * (1 - kWorthARound)) break;
    }
  }

  std::vector<std::size_t> by_size_and_last_ready() const {
    std::vector<std::size_t> order(workload_.tensors.size());
    std::iota(order.rbegin(), order.rend(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t i) { return workload_.tensors[i].elements; });
    return order;
  }

  /// Nothing is gained before links idle.
  bool can_gain(std::size_t tensor) const {
    return !(chosen_[tensor]->exact() && forecast_.before_bubble(tensor));
  }

  /// Tensors of one size mostly go the same few ways: the first of them try all, the others those.
  void improve(std::size_t tensor) {
    Winners& winners = winners_[fronts_of_[tensor]];
    const Candidate* best = chosen_[tensor];
    double least = forecast_.step_seconds() - kNoticed;
    const auto try_out = [&](const Candidate& each) {
      if (&each == chosen_[tensor]) return;
      const double seconds = forecast_.with(tensor, each.chain, least);
      if (seconds >= least) return;
      least = seconds;
      best = &each;
    };
    if (winners.tensors++ % kTryAllEvery == 0) {
      for (const Candidate& each : *fronts_of_[tensor]) try_out(each);
    } else {
      for (const Candidate* each : winners.candidates) try_out(*each);
    }
    if (best == chosen_[tensor]) return;
    for (const Candidate* each : {chosen_[tensor], best}) {
      if (std::ranges::find(winners.candidates, each) == winners.candidates.end()) {
        winners.candidates.push_back(each);
      }
    }
    take(tensor, *best);
  }

  /// What loses nothing by travelling exactly, or with fewer encodings, does: the smallest first.
  void spare(const std::vector<std::size_t>& order) {
    const double most = forecast_.step_seconds() * (1 + kSpared);
    for (auto tensor = order.rbegin(); tensor != order.rend(); ++tensor) {
      if (chosen_[*tensor]->exact()) continue;
      for (const Candidate& each : *fronts_of_[*tensor]) {
        if (each.of->encodings >= chosen_[*tensor]->of->encodings) break;
        if (forecast_.with(*tensor, each.chain, most) >= most) continue;
        take(*tensor, each);
        break;
      }
    }
  }

  void take(std::size_t tensor, const Candidate& candidate) {
    chosen_[tensor] = &candidate;
    forecast_.set(tensor, candidate.chain);
  }

  struct Winners {
    std::size_t tensors = 0;
    std::vector<const Candidate*> candidates{};
  };

  const Workload& workload_;
  Fronts fronts_;
  Forecast forecast_;
  std::vector<const Front*> fronts_of_;
  std::vector<const Candidate*> chosen_;
  std::map<const Front*, Winners> winners_;
  std::map<std::size_t, std::unique_ptr<Candidate>> alike_, alike_best_;  // by elements
};

}  // namespace

std::vector<Codec> codecs_without_feedback(const Costs& costs) {
  std::vector<Codec> codecs;
  for (const auto& [spec, measured] : costs.codecs) {
    Codec codec = Codec::parse(spec);
    const Traits traits = codec.traits();
    if (traits.unbiased && !traits.lossless && !traits.sparse) codecs.push_back(std::move(codec));
  }
  return codecs;
}

Way Choice::way() const {
  Way way;
  way.codec = codec;
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
  Selector selector(joined.workload, cluster, costs, options);
  selector.run();
  Selection selection{
      {}, selector.forecast().step_seconds(), selector.forecast().exposed_seconds()};
  for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
    const std::size_t group = joined.group_of[i];
    const Candidate& choice = selector.choice(group);
    const bool small = joined.leader_of[group] != i;
    const bool exact = small || choice.exact();
    selection.choices.push_back({choice.of->option, exact ? exact_codec() : *choice.codec,
                                 small ? fmt::format("small: travels with {}",
                                                     workload.tensors[joined.leader_of[group]].name)
                                       : selector.reason(group)});
  }
  return selection;
}

Baselines baselines(const Workload& workload, const Cluster& cluster, const Costs& costs,
                    const SelectionOptions& options) {
  const Workload joined = join_small(workload).workload;  // as whatever is compared with it
  Baselines result{kNever, kNever, 0};
  Selector selector(joined, cluster, costs, options);
  selector.each_alike([&] {
    if (joined.tensors.empty()) return;
    double& least =
        selector.choice(0).exact() ? result.plain_seconds : result.all_compressed_seconds;
    least = std::min(least, selector.forecast().step_seconds());
  });
  Costs free = costs;
  for (auto& [spec, codec] : free.codecs) {
    codec.encode = codec.decode = codec.preparation = CostTable();
  }
  result.bound_seconds = select(workload, cluster, free, options).step_seconds;
  return result;
}

}  // namespace gradwire
