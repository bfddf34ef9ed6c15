// How the gradients of one model travel, and what that cost.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "channel.h"
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
  float weight_decay = 0;  ///< this share of the weights is added to their gradient

  /// As the model's author named it, for messages.
  std::string_view layer_name() const;
  /// In a stage that has not ended, or something is still owed.
  bool has_feedback() const;
  bool has_momentum() const;
  /// Whether an exchange leaves something for the next one, now or later.
  bool keeps_something() const;
};

/// What one parameter's gradients cost so far.
struct LayerTotals {
  std::string name{};
  std::string codec{};  ///< of the last exchange, or of the first if there was none
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;       ///< that an exact exchange would have sent
  std::uint64_t sent_bytes = 0;  ///< that were sent
  double squared_error = 0;      ///< of what was encoded, in the steps that were measured
  double energy = 0;
};

/// While positive, gradients travel exactly, in the whole process.
inline std::atomic<int> exact_scopes = 0;

/// Shared by a model's hook and by Python. Gradients are averaged over the ranks.
class Compression {
 public:
  /// `group` takes what codecs cannot: sparse gradients and other dtypes, exactly. `copies_to_host`
  /// sends copies of buckets also where they could be used in place, for tests.
  Compression(std::shared_ptr<Channel> channel, c10::intrusive_ptr<c10d::ProcessGroup> group,
              std::uint64_t seed, bool copies_to_host = false);

  /// By the identity of the parameter, `Tensor._cdata` in Python. Between steps.
  void set_rules(std::unordered_map<const void*, Rule> rules);

  /// Of random numbers. Between steps.
  void set_seed(std::uint64_t seed) { seed_ = seed; }

  /// Shrinks the gradients of all parameters together to this norm, on each rank by itself, before
  /// anything else; 0: never. It makes every exchange wait for the end of the backward pass.
  void set_local_clip(double norm) { local_clip_ = norm; }

  /// Sees when gradients come, which makes refusals and `set_finds_unused` work. After `set_rules`.
  void watch(const std::vector<at::Tensor>& parameters);

  /// Whether some layers may have no gradient on any rank (`find_unused_parameters`). DDP throws
  /// the results of these away, so layers with feedback are exchanged only if a rank has used them:
  /// on this the ranks agree, in one more round trip per bucket. What waits to be sent of the
  /// others, and their momentum, stay as they are.
  void set_finds_unused(bool finds) { finds_unused_ = finds; }

  /// Called before the first exchange, which is not made if it throws; then again before the next.
  /// All ranks are there, as they may not be before: one alone may run the model forward.
  std::function<void()> before_first_exchange;

  /// Averages the bucket's buffer in place. The future holds it.
  FuturePtr average(c10d::GradBucket& bucket);

  /// Steps so far. Random numbers depend on it, so a run that goes on from a checkpoint sets it.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps);

  /// Of some layer, from the next exchange on.
  bool has_feedback() const;

  std::vector<LayerTotals> totals() const;

  /// Does all the work from now on, uncompressed. Between steps.
  std::shared_ptr<c10d::CommHookInterface> hook_of_user;

 private:
  struct Waiting {
    c10d::GradBucket bucket;
    OperationOptions options;
    std::shared_ptr<Completion> completion;
  };
  struct Layer {
    Rule rule;
    LayerTotals totals;               // guarded by the mutex of `Ledger`
    std::shared_ptr<LayerUse> use{};  // if it is watched
  };
  using LayerPtr = std::shared_ptr<Layer>;
  /// What is counted on the communicator's thread, which may outlive the model.
  struct Ledger {
    std::mutex mutex;
    void count(const std::vector<LayerPtr>& layers, std::uint64_t bytes_per_element,
               std::uint64_t ranks, const Statistics& statistics);
    /// What the group averages: it is as large as it is.
    void count_exact(const std::vector<LayerPtr>& layers, const at::Tensor& buffer,
                     std::uint64_t ranks);
  };

  std::vector<LayerPtr> layers_of(const c10d::GradBucket& bucket) const;
  FuturePtr average_by_group(const c10d::GradBucket& bucket) const;
  /// Shrinks the gradients to the norm that was asked for.
  void clip(const std::vector<Waiting>& ready) const;
  /// Adds weights to their gradient, if that was asked for.
  static void decay(const Layer& layer, const at::Tensor& parameter, const at::Tensor& range);
  static void look_for_misuse(Layer& layer);
  /// An exchange by this way begins.
  static void count_owed(Layer& layer, const Way& way, std::uint64_t step);
  /// Throws where results of exchanges were used twice, or not at all.
  static void check_received_once(const Layer& layer, const LayerUse::Findings& findings);
  /// What some rank has found. Waits for all ranks, where they may differ.
  std::vector<LayerUse::Findings> agree_on(std::vector<LayerUse::Findings> findings,
                                           const std::vector<LayerPtr>& layers) const;
  /// Which layers of a bucket some rank has used, after checks.
  std::vector<bool> used_of(const c10d::GradBucket& bucket,
                            const std::vector<LayerPtr>& layers) const;
  /// The bucket's numbers, or a copy of them on the host that comes back at the end.
  TensorView numbers_of(const Waiting& waiting) const;
  void start(const Waiting& waiting);

  const std::shared_ptr<Channel> channel_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::uint64_t seed_;
  const bool copies_to_host_;
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::uint64_t steps_ = 0;
  /// The bucket that came last. DDP hands them over in the order of their indices, so one that is
  /// not behind it begins a step.
  std::size_t last_bucket_ = std::numeric_limits<std::size_t>::max();
  double local_clip_ = 0;
  bool finds_unused_ = false;
  std::vector<Waiting> waiting_;
  std::unordered_map<const void*, LayerPtr> layers_;  // by parameter
};

/// What DDP calls for every bucket. A hook that the user registers later takes over.
class Hook final : public c10d::CommHookInterface {
 public:
  explicit Hook(std::shared_ptr<Compression> compression) : compression_(std::move(compression)) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const std::shared_ptr<Compression> compression_;
};

}  // namespace gradwire::pytorch
