// Looks for the candidates with which a step is shortest.
//
// From two sides: by ByteComp's two algorithms, which begin where all is exact and change one
// tensor after the other; and from what is cheapest by prices of resources (prices.h), which see
// all tensors at once, but not when each is under way. From both, changes of one tensor are tried
// until none makes the step shorter, those first that are cheapest by the prices; of two, if there
// are few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/candidates.h"
#include "plan/forecast.h"
#include "plan/prices.h"
#include "plan/workload.h"

namespace gradwire {

class Search {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  /// All tensors are exact, by the fastest candidate. At most so many may be compressed.
  Search(const Workload& workload, Candidates& candidates, const Sharing& sharing,
         std::size_t most_compressed = kNoLimit);

  /// All there is to do.
  void run();

  /// ByteComp's algorithm 1. From the largest tensor on, and among equal ones from the last that is
  /// ready, each gets the candidate of the first device with which the step is shortest. Exact
  /// tensors before a bubble are left out.
  void decide_one_by_one();
  /// Its algorithm 2. Of compressed tensors with the same size and option those go to the second
  /// device that are ready first; their number is sought for all groups together, or, where there
  /// are too many combinations, for one group after the other.
  void offload();

  const Candidate& choice(std::size_t tensor) const { return *chosen_[tensor]; }
  const Candidate& fastest_exact(std::size_t tensor) const { return fronts_[tensor]->front(); }
  const std::vector<Candidate>& front(std::size_t tensor) const { return *fronts_[tensor]; }
  const Forecast& forecast() const { return forecast_; }

  /// The shortest step with one way for all tensors that is exact, or else that compresses all, if
  /// it is shorter than these seconds: it is chosen then. Otherwise nothing changes.
  std::optional<double> take_uniform(bool exact, double shorter_than);

 private:
  using Choices = std::vector<const Candidate*>;

  struct Group {
    std::vector<std::size_t> tensors;  // as they are ready
    const Candidate* own;
    const Candidate* other;
  };

  void set(const Choices& chosen);
  void take(std::size_t tensor, const Candidate& candidate);
  bool allows(std::size_t tensor, const Candidate& candidate) const;
  bool can_gain(std::size_t tensor) const;
  bool close_enough() const;
  void improve(std::size_t tensor, std::uint32_t devices);
  bool improve(std::size_t tensor, double least, std::size_t candidates, std::uint32_t devices);
  void descend();
  bool improve_pairs();
  void begin_with_prices();
  void narrow();
  void keep_most_compressed(Choices& chosen) const;
  void spare();
  std::vector<Group> groups();
  void move(const Group& group, std::size_t count);
  double least_of(std::uint32_t way);

  const Workload& workload_;
  Candidates& candidates_;
  const std::size_t most_compressed_;
  const bool one_device_;
  std::vector<const std::vector<Candidate>*> fronts_;
  Forecast forecast_;
  Prices prices_;
  std::vector<std::size_t> order_;                    // large ones first
  std::vector<std::vector<const Candidate*>> tried_;  // by tensor, the cheapest first
  Choices chosen_;
  std::map<std::size_t, Candidate> uniform_;  // by elements, if one way is chosen for all
  std::size_t compressed_ = 0;
};

}  // namespace gradwire
