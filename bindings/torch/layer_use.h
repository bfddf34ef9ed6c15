// Whether what is exchanged of one layer reaches its weights, once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "gradwire/tensor.h"

namespace gradwire::pytorch {

/// A parameter, whose version an optimizer counts up, and the numbers that this rank has of it:
/// with DDP the parameter itself, with FSDP2 a shard.
struct Weights {
  at::Tensor parameter;
  at::Tensor numbers;
};

/// How this rank uses one layer. As DDP does, not by the numbers that an exchange is given: those
/// of an unused layer may be left from an earlier step.
///
/// That the optimizer has made a step shows in the version of the weights, which PyTorch counts.
/// Parameters of no optimizer keep theirs, so nothing is found of them. All threads may call.
class LayerUse {
 public:
  /// Since the last exchange.
  struct Findings {
    bool used = false;       ///< a gradient has come
    bool added = false;      ///< a step was made of the sum of an exchanged gradient and another
    bool discarded = false;  ///< a step was made after an exchanged gradient was thrown away
  };

  /// What is looked for from now on; what was seen is forgotten. `once`: results of exchanges must
  /// not enter another one. `kept`: an exchange leaves something for the next one.
  void look_for(bool once, bool kept);

  /// Before it is accumulated to `sum`, this rank's gradient, if there is one.
  void gradient_comes(const Weights& weights, const at::Tensor& sum);

  Findings take_findings();

  /// DDP or FSDP2 makes the result the parameter's gradient.
  void exchanged(const Weights& weights);

  /// What that is: a gradient of zeros alone is not one that was thrown away.
  void result_is(ConstTensorView numbers);

 private:
  /// Some optimizers change weights and do not count it: those with `fused=True`, and those that
  /// write to `parameter.data`.
  enum class Counting { unknown, counted, uncounted };

  /// Whether the optimizer has made a step since the exchange, or may have.
  bool may_have_stepped(const Weights& weights, std::int64_t version);

  std::mutex mutex_;
  bool once_ = false;
  bool kept_ = false;
  Findings findings_;
  bool received_ = false;     // its gradient is the result of an exchange
  bool result_zero_ = false;  // nothing but zeros
  Counting counting_ = Counting::unknown;
  // Versions of the weights, or -1:
  std::int64_t exchanged_at_ = -1;
  std::int64_t added_at_ = -1;                // as another gradient was added to a result
  std::int64_t discarded_at_ = -1;            // as a result was found thrown away
  std::optional<std::int64_t> weights_hash_;  // at the exchange, while the counting is unknown
};

/// Tells `use` of the parameter's gradients, from now on. False: the parameter has none.
bool watch_gradients(const at::Tensor& parameter, std::shared_ptr<LayerUse> use);

}  // namespace gradwire::pytorch
