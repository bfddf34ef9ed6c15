#include "plan/search.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

namespace gradwire {
namespace {

constexpr double kNoticed = 1e-9;      // seconds: what is less is no gain
constexpr double kWorthARound = 1e-3;  // of a step, by looking at every tensor again
constexpr double kSpared = 1e-6;       // of a step, that exact messages may take longer
constexpr int kMostRounds = 5;
constexpr std::size_t kTrials = 500;      // of all tensors together, once for each
constexpr std::size_t kFewestTrials = 4;  // of a tensor
constexpr std::size_t kPriceRounds = 48;
constexpr std::size_t kPriceStarts = 6;  // forecasts of what prices have found
constexpr double kWaiting = 0.25;        // what the last tensor's own time is worth at first
constexpr double kPriceFactors[] = {3, 1.5, 1.2};
constexpr double kCloseEnough = 2e-3;           // above what no choice is below
constexpr std::uint64_t kMostTasks = 60'000;    // walked by forecasts to improve one start
constexpr std::size_t kFewTensors = 24;         // of which both starts and pairs are looked at
constexpr std::size_t kPaired = 8;              // candidates of each of two tensors
constexpr std::size_t kMostCombinations = 256;  // of numbers of tensors on the second device

std::vector<std::size_t> large_and_last_first(const Workload& workload) {
  std::vector<std::size_t> order(workload.tensors.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return workload.tensors[i].elements; });
  return order;
}

std::vector<const std::vector<Candidate>*> fronts_of(const Workload& workload,
                                                     Candidates& candidates) {
  std::vector<const std::vector<Candidate>*> fronts;
  for (const WorkloadTensor& tensor : workload.tensors) {
    fronts.push_back(&candidates.front(tensor.elements));
  }
  return fronts;
}

}  // namespace

Search::Search(const Workload& workload, Candidates& candidates, const Sharing& sharing,
               std::size_t most_compressed)
    : workload_(workload),
      candidates_(candidates),
      most_compressed_(most_compressed),
      one_device_(sharing.one_device),
      fronts_(fronts_of(workload, candidates)),
      forecast_(workload, sharing),
      prices_(workload, sharing, fronts_),
      order_(large_and_last_first(workload)) {
  Choices exact;
  for (const auto* front : fronts_) {
    exact.push_back(&front->front());
    auto& tried = tried_.emplace_back();
    for (const Candidate& each : *front) tried.push_back(&each);
  }
  set(exact);
}

void Search::run() {
  if (workload_.tensors.empty()) return;
  const Choices exact = chosen_;
  begin_with_prices();
  offload();
  descend();
  if (workload_.tensors.size() <= kFewTensors) {
    const Choices by_prices = chosen_;
    const double seconds = forecast_.step_seconds();
    set(exact);
    decide_one_by_one();
    offload();
    descend();
    if (forecast_.step_seconds() >= seconds) set(by_prices);
  }
  take_uniform(true, forecast_.step_seconds());
  if (workload_.tensors.size() <= most_compressed_) {
    take_uniform(false, forecast_.step_seconds());
  }
  spare();
}

std::optional<double> Search::take_uniform(bool exact, double shorter_than) {
  if (workload_.tensors.empty()) return {};
  Choices best = chosen_;
  std::optional<double> found;
  for (std::uint32_t way = 0; way < candidates_.ways(); ++way) {
    if (candidates_.is_exact(way) != exact || least_of(way) >= shorter_than) continue;
    std::map<std::size_t, Candidate> uniform;
    Choices chosen;
    for (const WorkloadTensor& tensor : workload_.tensors) {
      const auto [at, is_new] = uniform.try_emplace(tensor.elements);
      if (is_new) at->second = candidates_.uniform(way, tensor.elements);
      chosen.push_back(&at->second);
    }
    set(chosen);
    if (forecast_.step_seconds() >= shorter_than) continue;
    found = shorter_than = forecast_.step_seconds();
    best = chosen;
    uniform_ = std::move(uniform);  // whose candidates stay where they are
  }
  set(best);
  return found;
}

void Search::set(const Choices& chosen) {
  chosen_ = chosen;
  std::vector<const Chain*> chains;
  for (const Candidate* each : chosen) chains.push_back(&candidates_.chain_of(*each));
  forecast_.set(chains);
  compressed_ = static_cast<std::size_t>(
      std::ranges::count_if(chosen, [](const Candidate* each) { return !each->exact(); }));
}

void Search::take(std::size_t tensor, const Candidate& candidate) {
  compressed_ -= chosen_[tensor]->exact() ? 0 : 1;
  compressed_ += candidate.exact() ? 0 : 1;
  chosen_[tensor] = &candidate;
  forecast_.set(tensor, candidates_.chain_of(candidate));
}

bool Search::allows(std::size_t tensor, const Candidate& candidate) const {
  return candidate.exact() || !chosen_[tensor]->exact() || compressed_ < most_compressed_;
}

/// No choice is much better.
bool Search::close_enough() const {
  return forecast_.step_seconds() < prices_.least_seconds() * (1 + kCloseEnough);
}

/// Nothing is gained before links idle.
bool Search::can_gain(std::size_t tensor) const {
  return !(chosen_[tensor]->exact() && forecast_.before_bubble(tensor));
}

/// Takes the best of the first candidates that make the step shorter than `least`, if one does.
bool Search::improve(std::size_t tensor, double least, std::size_t candidates,
                     std::uint32_t devices) {
  const Candidate* best = chosen_[tensor];
  for (std::size_t i = 0; i < std::min(candidates, tried_[tensor].size()); ++i) {
    const Candidate& each = *tried_[tensor][i];
    if (&each == chosen_[tensor] || !allows(tensor, each)) continue;
    if (devices == 1 && each.elsewhere != 0) continue;
    const double seconds = forecast_.with(tensor, candidates_.chain_of(each), least);
    if (seconds >= least) continue;
    least = seconds;
    best = &each;
  }
  if (best == chosen_[tensor]) return false;
  take(tensor, *best);
  return true;
}

void Search::improve(std::size_t tensor, std::uint32_t devices) {
  if (!can_gain(tensor)) return;
  improve(tensor, forecast_.step_seconds() - kNoticed, tried_[tensor].size(), devices);
}

void Search::decide_one_by_one() {
  for (const std::size_t tensor : order_) improve(tensor, 1);
}

void Search::descend() {
  const std::uint64_t begin = forecast_.tasks_walked();
  for (int round = 0; round < kMostRounds; ++round) {
    const double before = forecast_.step_seconds();
    for (const std::size_t tensor : order_) {
      if (close_enough()) return;
      if (forecast_.tasks_walked() - begin > kMostTasks) return;
      improve(tensor, 2);
    }
    if (forecast_.step_seconds() > before * (1 - kWorthARound) && !improve_pairs()) break;
  }
}

/// Both of two tensors change, as one frees what the other then uses. Whether any did.
bool Search::improve_pairs() {
  if (workload_.tensors.size() > kFewTensors) return false;
  const std::uint64_t begin = forecast_.tasks_walked();
  const double before = forecast_.step_seconds();
  for (const std::size_t one : order_) {
    for (std::size_t i = 0; i < std::min(kPaired, tried_[one].size()); ++i) {
      const Candidate* const first = chosen_[one];
      const double least = forecast_.step_seconds() - kNoticed;
      if (tried_[one][i] == first || !allows(one, *tried_[one][i])) continue;
      take(one, *tried_[one][i]);
      for (const std::size_t other : order_) {
        if (forecast_.tasks_walked() - begin > kMostTasks) break;
        if (other != one && improve(other, least, kPaired, 2)) break;
      }
      if (forecast_.step_seconds() > least) take(one, *first);
    }
  }
  return forecast_.step_seconds() < before - kNoticed;
}

/// The best by a forecast of what is cheapest while prices settle. What is tried from now on are
/// the candidates that are cheapest by the last prices.
/// The best by a forecast of what is cheapest while prices settle, and as they change then. What is
/// tried from now on are the candidates that are cheapest by the best prices.
void Search::begin_with_prices() {
  Choices best = chosen_;
  double least = forecast_.step_seconds();
  const auto look = [&] {
    Choices cheapest = prices_.cheapest();
    keep_most_compressed(cheapest);
    if (cheapest == chosen_) return false;
    set(cheapest);
    if (forecast_.step_seconds() >= least - kNoticed) return false;
    least = forecast_.step_seconds();
    best = std::move(cheapest);
    return true;
  };
  for (std::size_t start = 0; start < kPriceStarts; ++start) {
    if (close_enough()) return narrow();
    prices_.adapt(kPriceRounds / kPriceStarts);
    look();
  }
  Prices::Change change{.factors = {1, 1, 1, 1, 1}, .waiting = kWaiting};
  prices_.change(change);
  look();
  for (const double factor : kPriceFactors) {
    for (std::size_t knob = 0; knob <= kResources; ++knob) {
      for (const double by : {factor, 1 / factor}) {
        Prices::Change other = change;
        (knob < kResources ? other.factors[knob] : other.waiting) *= by;
        prices_.change(other);
        if (look()) change = other;
        if (close_enough()) return narrow();
      }
    }
  }
  prices_.change(change);
  set(best);
  narrow();
}

/// To so many for each tensor that all can be tried.
void Search::narrow() {
  const std::size_t trials = std::max(kFewestTrials, kTrials / workload_.tensors.size());
  for (std::size_t tensor = 0; tensor < tried_.size(); ++tensor) {
    auto& tried = tried_[tensor];
    const std::size_t some = std::min(trials, tried.size());
    std::vector<std::pair<double, const Candidate*>> priced;
    for (const Candidate* each : tried) priced.emplace_back(prices_.price_of(tensor, *each), each);
    std::ranges::partial_sort(priced, priced.begin() + static_cast<std::ptrdiff_t>(some));
    tried.clear();
    for (std::size_t i = 0; i < some; ++i) tried.push_back(priced[i].second);
    const Candidate* exact = &fastest_exact(tensor);
    if (std::ranges::find(tried, exact) == tried.end()) tried.push_back(exact);
  }
}

/// Those for which being exact would be dearest.
void Search::keep_most_compressed(Choices& chosen) const {
  std::vector<std::pair<double, std::size_t>> compressed;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]->exact()) continue;
    compressed.emplace_back(prices_.price_of(i, fastest_exact(i)) - prices_.price_of(i, *chosen[i]),
                            i);
  }
  if (compressed.size() <= most_compressed_) return;
  std::ranges::sort(compressed, std::greater<>());
  for (std::size_t i = most_compressed_; i < compressed.size(); ++i) {
    chosen[compressed[i].second] = &fastest_exact(compressed[i].second);
  }
}

std::vector<Search::Group> Search::groups() {
  std::map<std::pair<std::size_t, std::uint32_t>, Group> groups;  // by elements and way
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    const std::size_t elements = workload_.tensors[i].elements;
    if (chosen_[i]->exact() || chosen_[i]->elsewhere != 0) continue;
    const Candidate* other = candidates_.offloaded(*chosen_[i]);
    if (other == nullptr) continue;
    Group& group = groups[{elements, chosen_[i]->way}];
    group.tensors.push_back(i);
    group.own = chosen_[i];
    group.other = other;
  }
  std::vector<Group> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

/// So many of its tensors are on the second device.
void Search::move(const Group& group, std::size_t count) {
  for (std::size_t i = 0; i < group.tensors.size(); ++i) {
    const Candidate& wanted = i < count ? *group.other : *group.own;
    if (chosen_[group.tensors[i]] != &wanted) take(group.tensors[i], wanted);
  }
}

void Search::offload() {
  const std::vector<Group> groups = this->groups();
  std::size_t combinations = 1;
  for (const Group& group : groups) {
    combinations = std::min(combinations * (group.tensors.size() + 1), kMostCombinations + 1);
  }
  std::vector<std::size_t> counts(groups.size()), best = counts;
  double least = forecast_.step_seconds();
  const auto look = [&] {
    if (forecast_.step_seconds() >= least - kNoticed) return;
    least = forecast_.step_seconds();
    best = counts;
  };
  if (combinations <= kMostCombinations) {
    for (std::size_t i = 1; i < combinations; ++i) {
      for (std::size_t digit = 0; digit < groups.size(); ++digit) {
        const bool full = counts[digit] == groups[digit].tensors.size();
        counts[digit] = full ? 0 : counts[digit] + 1;
        move(groups[digit], counts[digit]);
        if (!full) break;
      }
      look();
    }
  } else {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (counts[i] = 1; counts[i] <= groups[i].tensors.size(); ++counts[i]) {
        move(groups[i], counts[i]);
        look();
      }
      counts = best;
      move(groups[i], counts[i]);
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) move(groups[i], best[i]);
}

/// What loses nothing by travelling exactly, or with fewer encodings, does: the smallest first.
void Search::spare() {
  const std::uint64_t begin = forecast_.tasks_walked();
  const double most = forecast_.step_seconds() * (1 + kSpared);
  for (auto tensor = order_.rbegin(); tensor != order_.rend(); ++tensor) {
    if (chosen_[*tensor]->exact()) continue;
    if (forecast_.tasks_walked() - begin > kMostTasks) return;
    std::vector<const Candidate*> fewer;
    std::ranges::copy_if(tried_[*tensor], std::back_inserter(fewer), [&](const Candidate* each) {
      return each->encodings < chosen_[*tensor]->encodings;
    });
    std::ranges::stable_sort(fewer, {}, &Candidate::encodings);
    for (const Candidate* each : fewer) {
      if (forecast_.with(*tensor, candidates_.chain_of(*each), most) >= most) continue;
      take(*tensor, *each);
      break;
    }
  }
}

/// What a step takes at least if all tensors go this way: no tensor's exchange is shorter than
/// alone, and no resource does its work faster, from whichever tensor on.
double Search::least_of(std::uint32_t way) {
  constexpr auto kCodec = static_cast<std::size_t>(Resource::codec);
  std::map<std::size_t, Candidate> known;  // by elements
  std::array<double, kResources> busy{};   // from a tensor on
  double least = 0;
  for (auto tensor = workload_.tensors.rbegin(); tensor != workload_.tensors.rend(); ++tensor) {
    const auto [at, is_new] = known.try_emplace(tensor->elements);
    if (is_new) at->second = candidates_.uniform(way, tensor->elements);
    const Candidate& candidate = at->second;
    for (std::size_t i = 0; i < kResources; ++i) {
      busy[i] += candidate.busy[i];
      least = std::max(least, tensor->ready_seconds + busy[i]);
    }
    if (candidate.pieces == 1) least = std::max(least, tensor->ready_seconds + candidate.seconds);
  }
  if (one_device_) least = std::max(least, workload_.tensors.back().ready_seconds + busy[kCodec]);
  return workload_.forward_seconds + least;
}

}  // namespace gradwire
