#include "layer_use.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace gradwire::pytorch {
namespace {

std::int64_t hash_of(const at::Tensor& parameter) {
  if (parameter.numel() == 0) return 0;  // torch has none of nothing
  const at::NoGradGuard no_grad;
  const at::Tensor plain = parameter.resolve_conj().resolve_neg();
  const at::Tensor reals = plain.is_complex() ? at::view_as_real(plain) : plain;
  return at::hash_tensor(reals).view(at::kLong).item<std::int64_t>();
}

/// Ends with the first number that is none: for almost all gradients at once.
template <typename Bits>
bool only_zeros(const void* numbers, std::size_t count) {
  constexpr Bits kNegativeZero = Bits{1} << (8 * sizeof(Bits) - 1);
  const std::span<const Bits> bits(static_cast<const Bits*>(numbers), count);
  return std::ranges::all_of(bits, [](Bits each) { return each == 0 || each == kNegativeZero; });
}

/// Before a gradient is accumulated, after which DDP may hand over its bucket.
class Watch final : public torch::autograd::FunctionPreHook {
 public:
  Watch(at::Tensor parameter, std::shared_ptr<LayerUse> use)
      : parameter_(std::move(parameter)), use_(std::move(use)) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& gradients) override {
    if (gradients[0].defined()) use_->gradient_comes({parameter_, parameter_}, parameter_.grad());
    return gradients;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "gradwire: compiled autograd does not work with the C++ reducer of "
        "DistributedDataParallel, which gradwire compresses by: leave "
        "torch._dynamo.config.compiled_autograd and torch._dynamo.config.optimize_ddp as they are "
        "by default. torch.compile works without compiled autograd");
  }

 private:
  const at::Tensor parameter_;
  const std::shared_ptr<LayerUse> use_;
};

}  // namespace

void LayerUse::look_for(bool once, bool kept) {
  const std::lock_guard lock(mutex_);
  once_ = once;
  kept_ = kept;
  findings_.added = findings_.discarded = false;
  received_ = false;
  counting_ = Counting::unknown;
  exchanged_at_ = added_at_ = discarded_at_ = -1;
}

void LayerUse::gradient_comes(const Weights& weights, const at::Tensor& sum) {
  const std::lock_guard lock(mutex_);
  findings_.used = true;
  if (!once_ && !kept_) return;
  const std::int64_t version = weights.parameter._version();
  if (added_at_ >= 0 && added_at_ != version) findings_.added = true;
  if (discarded_at_ >= 0 && discarded_at_ != version) {
    findings_.discarded = true;
    discarded_at_ = -1;
  }
  if (!received_) return;
  const bool may_have_stepped = this->may_have_stepped(weights, version);
  if (may_have_stepped && !once_) {  // saves looking at the gradient
    received_ = false;
    return;
  }
  received_ = sum.defined() && (result_zero_ || sum.any().item<bool>());
  added_at_ = once_ && received_ ? version : -1;
  if (received_ || may_have_stepped) return;
  discarded_at_ = version;
  counting_ = Counting::unknown;  // or there is another optimizer now
}

bool LayerUse::may_have_stepped(const Weights& weights, std::int64_t version) {
  if (exchanged_at_ < 0) return true;
  if (exchanged_at_ != version) {
    counting_ = Counting::counted;
    return true;
  }
  if (!weights_hash_ || *weights_hash_ == hash_of(weights.numbers)) return false;
  counting_ = Counting::uncounted;
  exchanged_at_ = discarded_at_ = -1;
  return true;
}

LayerUse::Findings LayerUse::take_findings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(findings_, {});
}

void LayerUse::exchanged(const Weights& weights) {
  const std::lock_guard lock(mutex_);
  received_ = true;
  exchanged_at_ = -1;
  weights_hash_.reset();
  if (!kept_ || counting_ == Counting::uncounted) return;
  exchanged_at_ = static_cast<std::int64_t>(weights.parameter._version());
  if (counting_ == Counting::unknown) weights_hash_ = hash_of(weights.numbers);
}

void LayerUse::result_is(ConstTensorView numbers) {
  const bool zero = numbers.dtype == Dtype::f32
                        ? only_zeros<std::uint32_t>(numbers.data, numbers.count)
                        : only_zeros<std::uint16_t>(numbers.data, numbers.count);
  const std::lock_guard lock(mutex_);
  result_zero_ = zero;
}

bool watch_gradients(const at::Tensor& parameter, std::shared_ptr<LayerUse> use) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  accumulator->add_pre_hook(std::make_unique<Watch>(parameter, std::move(use)));
  return true;
}

}  // namespace gradwire::pytorch
