// How the gradients of one model travel, and what that cost: what DDP and FSDP2 have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "auto_plan.h"
#include "gradwire/communicator.h"
#include "gradwire/plan.h"
#include "layer_use.h"

namespace gradwire::pytorch {

/// How one parameter's gradient travels.
struct Rule {
  std::string name{};  ///< unique in the process: the model's number, a slash, the layer's name
  std::uint64_t elements = 0;
  std::vector<Stage> stages{Stage{}};  ///< of its plan
  std::uint64_t step = 0;              ///< that of the last exchange: earlier stages have ended
  /// Exchanges without feedback until nothing can be lost any more of what an earlier stage or rule
  /// kept: the first delivers it, and later ones see whether that was used.
  int owed_exchanges = 0;
  bool may_become_lossy = false;  ///< whatever its stages are: somebody chooses
  float weight_decay = 0;         ///< this share of the weights is added to their gradient

  /// As the model's author named it, for messages.
  std::string_view layer_name() const;
  /// In a stage that has not ended, or something is still owed.
  bool has_feedback() const;
  bool has_momentum() const;
  /// Whether an exchange leaves something for the next one, now or later.
  bool keeps_something() const;
  /// In all stages, and for good.
  bool is_exact() const;
};

/// What one parameter's gradients cost so far.
struct LayerTotals {
  std::string name{};
  std::optional<Way> way{};  ///< of the last exchange, or of the first if there was none
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;       ///< that an exact exchange would have sent
  std::uint64_t sent_bytes = 0;  ///< that were sent
  double squared_error = 0;      ///< of what was encoded by its way, where that was measured
  double energy = 0;             ///< of just that
};

/// One parameter.
struct LayerState {
  Rule rule;
  LayerTotals totals;               // guarded by the mutex of `Ledger`
  std::optional<Way> measured{};    // the way whose errors `totals` has
  std::shared_ptr<LayerUse> use{};  // if it is watched
};
using LayerPtr = std::shared_ptr<LayerState>;

/// Counts what exchanges cost, also on the communicator's thread, which may outlive the model.
class Ledger {
 public:
  /// `exact_bytes` are those that an exact exchange of each layer sends.
  void count(const std::vector<LayerPtr>& layers, std::span<const std::uint64_t> exact_bytes,
             const Statistics& statistics);
  /// The same for an exchange that was exact, by the process group.
  void count_exact(const std::vector<LayerPtr>& layers, std::span<const std::uint64_t> exact_bytes);

  /// What an exchange of this rank showed of layers, whose sums are divided by so much before they
  /// are the mean of `ranks`.
  void see(const std::vector<LayerPtr>& layers, const Statistics& statistics, double ranks,
           double divisor);

  std::mutex mutex;
  std::shared_ptr<Sights> sights{};  ///< by what layers are adapted; null: they are not
};

/// While positive, gradients travel exactly, in the whole process.
inline std::atomic<int> exact_scopes = 0;

/// Shared by what exchanges a model's gradients and by Python. DDP and FSDP2 derive from it.
class Compression {
 public:
  virtual ~Compression() = default;

  /// By the identity of the parameter, which is up to DDP and FSDP2. Between steps.
  void set_rules(const std::unordered_map<const void*, Rule>& rules);

  /// Decides about ways from now on, in the place of rules; null: nobody does. Between steps.
  void choose_by(std::shared_ptr<AutoPlan> chooser);
  const std::shared_ptr<AutoPlan>& chooser() const noexcept { return chooser_; }
  /// What the chooser has loaded or decided becomes that of all layers.
  void take_plan(const Plan& plan);

  /// Of random numbers. Between steps.
  void set_seed(std::uint64_t seed) { seed_ = seed; }

  /// Called before the first exchange, which is not made if it throws; then again before the next.
  /// All ranks are there, as they may not be before: one alone may run the model forward.
  std::function<void()> before_first_exchange;

  /// Steps so far. Random numbers depend on it, so a run that goes on from a checkpoint sets it.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps);

  /// Of some layer, from the next exchange on.
  bool has_feedback() const;

  std::vector<LayerTotals> totals() const;

 protected:
  explicit Compression(std::uint64_t seed) : seed_(seed) {}

  /// Throws for a parameter that has no rule.
  const LayerPtr& layer_of(const void* parameter) const;

  /// Once for each exchange, before anything else.
  void begin_exchange();
  /// A step begins. Where somebody chooses, ranks may meet in it.
  void count_step();
  /// The one that has begun, from 0.
  std::uint64_t step() const { return steps_ - 1; }

  /// Of exchanges in this step, which are not measured.
  OperationOptions options_at(std::uint64_t step) const;
  /// The way of an exchange that begins, once for each layer and step.
  static Way take_way(LayerState& layer, std::uint64_t step);
  /// Whether its errors are measured in this step: in some, and in the first of every way, where
  /// those of the way before are forgotten. After `take_way`.
  bool measures(LayerState& layer, std::uint64_t step) const;

  /// From now on, in what way its rule asks for.
  static void look_for_misuse(LayerState& layer);
  /// Says where results of exchanges were used twice, or not at all; empty: nowhere. `instead` says
  /// what to do with a gradient that is not wanted.
  static std::string misuse_of(const LayerState& layer, const LayerUse::Findings& findings,
                               std::string_view instead);

  std::shared_ptr<AutoPlan> chooser_;
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::unordered_map<const void*, LayerPtr> layers_;  // by parameter

 private:
  std::uint64_t seed_;
  std::uint64_t steps_ = 0;
};

}  // namespace gradwire::pytorch
