// The layers that a communicator knows, and the ways that plans have given them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/communicator.h"
#include "gradwire/plan.h"

namespace gradwire::engine {

/// What ranks compare. Equal layers, or ways, have equal hashes.
struct PlanHash {
  std::uint64_t layers = 0;  ///< of their names, counts and dtypes
  std::uint64_t ways = 0;    ///< of those of all layers, from the plan's step on

  friend bool operator==(const PlanHash&, const PlanHash&) = default;
};

/// How a plan has a layer travel, in words.
struct LayerWays {
  std::string layer{};
  std::string ways{};
};

/// Threads: any.
class Layers {
 public:
  /// Throws `Error(invalid_argument)` for a layer without a name, or one that is known with another
  /// count or dtype.
  void add(std::span<const LayerShape> layers);

  /// How the plan would have each layer travel from a step on, in their order. Throws as `set`, and
  /// changes nothing.
  std::vector<LayerWays> ways(const Plan& plan, std::uint64_t from_step) const;
  /// The same, and the layers, for comparing.
  PlanHash hash_of(const Plan& plan, std::uint64_t from_step) const;

  /// Ways of all layers from a step on. Throws `Error(invalid_argument)` when there are none, or
  /// when a pattern of the plan matches none of them.
  void set(const Plan& plan, std::uint64_t from_step);

  /// The tensor's own way; or that of its layer at a step; or, while there is no plan, exactly.
  /// Throws `Error(invalid_argument)` for a tensor that no plan knows, or that is not as it was
  /// registered, and when the step is needed and not known.
  Way way_of(const Tensor& tensor, std::size_t count, std::optional<std::uint64_t> step) const;

 private:
  struct Layer {
    LayerShape shape;
    std::vector<Stage> stages;  // empty until there is a plan
  };

  void check(const Plan& plan) const;  // with mutex_ held

  mutable std::mutex mutex_;
  std::map<std::string, Layer, std::less<>> by_name_;  // guarded by mutex_
  bool planned_ = false;                               // guarded by mutex_
};

}  // namespace gradwire::engine
