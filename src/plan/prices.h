// What the time of each resource is worth, and with it the shortest step that any choice could
// have.
//
// A link that carries all messages of the tensors from one on cannot have done so before the first
// of them is ready; whoever computes and encodes must do all of both; and a tensor's own exchange
// takes its time. For any prices of these
// limits that add up to 1, the step takes at least the sum over tensors of the cheapest candidate's
// price, and of when the limits begin. The prices are sought with which that is most: what is often
// short becomes dear.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "plan/candidates.h"
#include "plan/forecast.h"
#include "plan/workload.h"

namespace gradwire {

class Prices {
 public:
  using Front = std::vector<Candidate>;

  /// One set of candidates for each tensor.
  Prices(const Workload& workload, const Sharing& sharing, std::span<const Front* const> fronts);

  /// Changes prices so many times.
  void adapt(std::size_t rounds);

  /// No choice has a shorter step by a forecast: the best of all prices so far.
  double least_seconds() const noexcept;
  /// Changes of the prices of the last round.
  struct Change {
    std::array<double, kResources> factors;
    /// What a second of the last tensor's own exchange is worth, for which the step waits; of the
    /// limits before it, half, a quarter and so on.
    double waiting;
  };
  void change(const Change& change);

  /// By the prices as they are.
  double price_of(std::size_t tensor, const Candidate& candidate) const noexcept;
  /// The cheapest candidates, by tensor.
  std::vector<const Candidate*> cheapest() const;

 private:
  static constexpr std::size_t kLimits = 10;  // of each resource: from so many tensors on

  struct Limit {
    double begins = 0;
    double price = 0;
    double uses = 0;  // seconds of the cheapest candidates
  };

  /// Of tensors from one limit to the next.
  using Price = std::array<double, kResources + 1>;

  /// What has a price, of all candidates of a front: resources and, the last, waiting.
  using Demands = std::vector<std::array<double, kResources + 1>>;

  void add_up();
  void use(const std::vector<const Candidate*>& chosen);

  const Workload& workload_;
  const std::vector<const Front*> fronts_;
  std::map<const Front*, Demands> demands_;  // close together, as they are read often
  std::vector<const Demands*> demands_of_;   // by tensor
  std::vector<std::size_t> first_;           // tensor of each limit
  std::vector<bool> alone_;  // whether a limit begins with the only tensor before the next
  std::array<std::vector<Limit>, kResources + 1> limits_;  // the last: of tensors that are alone
  std::vector<Price> prices_;
  std::vector<std::size_t> price_of_;  // by tensor: its place among the prices
  double least_ = 0;
  std::size_t rounds_ = 0;
};

}  // namespace gradwire
