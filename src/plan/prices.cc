#include "plan/prices.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace gradwire {
namespace {

constexpr auto kCodec = static_cast<std::size_t>(Resource::codec);
constexpr double kFirstStep = 4;  // by how much a price may change, as an exponent

constexpr std::size_t kWaiting = kResources;  // behind the resources

/// At least. Pieces overlap in ways that are not known before they are walked.
double waiting_seconds(const Candidate& candidate) {
  return candidate.pieces == 1 ? candidate.seconds : *std::ranges::max_element(candidate.busy);
}

std::array<double, kResources + 1> demands_of(const Candidate& candidate) {
  std::array<double, kResources + 1> demands{};
  std::ranges::copy(candidate.busy, demands.begin());
  demands[kWaiting] = waiting_seconds(candidate);
  return demands;
}

double price(const std::array<double, kResources + 1>& prices,
             const std::array<double, kResources + 1>& demands) {
  double sum = 0;
  for (std::size_t i = 0; i < prices.size(); ++i) sum += prices[i] * demands[i];
  return sum;
}

}  // namespace

Prices::Prices(const Workload& workload, const Sharing& sharing,
               std::span<const Front* const> fronts)
    : workload_(workload), fronts_(fronts.begin(), fronts.end()), price_of_(fronts.size()) {
  const std::size_t tensors = fronts_.size();
  for (const Front* front : fronts_) {
    const auto [found, is_new] = demands_.try_emplace(front);
    demands_of_.push_back(&found->second);
    if (is_new) std::ranges::transform(*front, std::back_inserter(found->second), demands_of);
  }
  for (std::size_t i = 0; i < kLimits; ++i) {
    const std::size_t first = tensors * i / kLimits;
    if (first < tensors && (first_.empty() || first_.back() < first)) first_.push_back(first);
  }
  // The last ones matter most: nothing hides them.
  for (std::size_t i = tensors > 3 ? tensors - 3 : 0; i < tensors; ++i) {
    if (first_.back() < i) first_.push_back(i);
  }
  for (std::size_t i = 0, segment = 0; i < tensors; ++i) {
    while (segment + 1 < first_.size() && first_[segment + 1] <= i) ++segment;
    price_of_[i] = segment;
  }
  prices_.resize(first_.size());
  for (std::size_t resource = 0; resource < kResources; ++resource) {
    // One device has all computing to do, wherever its codecs begin.
    const bool computes = resource == kCodec && sharing.one_device;
    const std::size_t limits = computes ? std::min<std::size_t>(1, first_.size()) : first_.size();
    for (std::size_t i = 0; i < limits; ++i) {
      const std::size_t tensor = computes ? tensors - 1 : first_[i];
      limits_[resource].push_back({workload.tensors[tensor].ready_seconds});
    }
  }
  for (std::size_t i = 0; i < first_.size(); ++i) {
    const std::size_t next = i + 1 < first_.size() ? first_[i + 1] : tensors;
    alone_.push_back(next == first_[i] + 1);
    limits_[kWaiting].push_back({alone_[i] ? workload.tensors[first_[i]].ready_seconds : 0});
  }
  std::size_t all = 0;
  for (const auto& limits : limits_) all += limits.size();
  for (auto& limits : limits_) {
    for (Limit& limit : limits) limit.price = 1.0 / static_cast<double>(all);
  }
}

/// A tensor uses all limits that begin with it or before.
void Prices::add_up() {
  for (std::size_t resource = 0; resource < kResources; ++resource) {
    const auto& limits = limits_[resource];
    double sum = 0;
    for (std::size_t i = 0; i < prices_.size(); ++i) {
      if (i < limits.size()) sum += limits[i].price;
      prices_[i][resource] = sum;
    }
  }
  for (std::size_t i = 0; i < prices_.size(); ++i) {
    prices_[i][kWaiting] = alone_[i] ? limits_[kWaiting][i].price : 0;
  }
}

void Prices::change(const Change& change) {
  add_up();
  double waiting = change.waiting;
  for (std::size_t i = prices_.size(); i-- > 0; waiting /= 2) {
    prices_[i][kWaiting] += waiting;
    for (std::size_t r = 0; r < kResources; ++r) prices_[i][r] *= change.factors[r];
  }
}

std::vector<const Candidate*> Prices::cheapest() const {
  std::vector<const Candidate*> chosen;
  std::map<const Demands*, const Candidate*> known;  // by these prices
  for (std::size_t tensor = 0; tensor < fronts_.size(); ++tensor) {
    if (tensor > 0 && price_of_[tensor] != price_of_[tensor - 1]) known.clear();
    const Demands& demands = *demands_of_[tensor];
    const Candidate*& best = known[&demands];
    if (best == nullptr) {
      const Price& prices = prices_[price_of_[tensor]];
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < demands.size(); ++i) {
        const double of_this = price(prices, demands[i]);
        if (of_this >= least) continue;
        least = of_this;
        best = &(*fronts_[tensor])[i];
      }
    }
    chosen.push_back(best);
  }
  return chosen;
}

void Prices::use(const std::vector<const Candidate*>& chosen) {
  std::vector<std::array<double, kResources>> used(first_.size());
  for (std::size_t tensor = 0; tensor < chosen.size(); ++tensor) {
    const std::size_t limit = price_of_[tensor];
    for (std::size_t i = 0; i < kResources; ++i) used[limit][i] += chosen[tensor]->busy[i];
    if (alone_[limit]) limits_[kWaiting][limit].uses = waiting_seconds(*chosen[tensor]);
  }
  for (std::size_t resource = 0; resource < kResources; ++resource) {
    double sum = 0;
    for (std::size_t i = first_.size(); i-- > 0;) {
      sum += used[i][resource];
      if (i < limits_[resource].size()) limits_[resource][i].uses = sum;
    }
  }
}

void Prices::adapt(std::size_t rounds) {
  if (fronts_.empty()) return;
  for (std::size_t round = 0; round < rounds; ++round) {
    add_up();
    use(cheapest());
    double seconds = 0, longest = 0;
    for (const auto& limits : limits_) {
      for (const Limit& limit : limits) {
        seconds += limit.price * (limit.begins + limit.uses);
        longest = std::max(longest, limit.begins + limit.uses);
      }
    }
    least_ = std::max(least_, seconds);
    if (longest <= 0) return;
    // Multiplicative weights, by steps that become shorter.
    const double step = kFirstStep / std::sqrt(1.0 + static_cast<double>(rounds_++)) / longest;
    double sum = 0;
    for (auto& limits : limits_) {
      for (Limit& limit : limits) {
        limit.price *= std::exp(step * (limit.begins + limit.uses - longest));
        sum += limit.price;
      }
    }
    for (auto& limits : limits_) {
      for (Limit& limit : limits) limit.price /= sum;
    }
  }
  add_up();
}

double Prices::least_seconds() const noexcept {
  return workload_.forward_seconds + std::max(least_, workload_.backward_seconds);
}

double Prices::price_of(std::size_t tensor, const Candidate& candidate) const noexcept {
  return price(prices_[price_of_[tensor]], demands_of(candidate));
}

}  // namespace gradwire
