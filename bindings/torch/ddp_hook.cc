#include "ddp_hook.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/route.h"

namespace gradwire::pytorch {
namespace {

constexpr std::string_view kInsteadOfThrowingAway =
    "put `with model.no_sync():` around that forward and backward pass, or ";

std::string bucket_name(const c10d::GradBucket& bucket) {
  return "bucket " + std::to_string(bucket.getIndex());
}

/// The gradients in the bucket's buffer, each as the range of numbers that it is in memory. Complex
/// ones are pairs of reals there, but the bucket counts them as one number each.
std::vector<at::Tensor> ranges_of(const c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  const auto gradients = bucket.getGradients();
  const auto parameters = bucket.getParameters();
  std::vector<at::Tensor> ranges;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t reals = parameters[i].is_complex() ? 2 : 1;
    const std::int64_t first = gradients[i].storage_offset() - buffer.storage_offset();
    ranges.push_back(buffer.narrow(0, reals * first, reals * parameters[i].numel()));
  }
  return ranges;
}

std::uint64_t bytes_in(const at::Tensor& buffer) {
  if (!buffer.is_sparse()) return buffer.nbytes();
  return buffer._values().nbytes() + buffer._indices().nbytes();
}

/// A range with the sizes and strides of its gradient. DDP lays a gradient out as its parameter is
/// (channels_last, for instance) if that has neither gaps nor overlaps.
at::Tensor as_gradient_of(const at::Tensor& parameter, const at::Tensor& range) {
  return parameter.is_non_overlapping_and_dense()
             ? range.as_strided(parameter.sizes(), parameter.strides())
             : range.view(parameter.sizes());
}

}  // namespace

DdpCompression::DdpCompression(std::shared_ptr<Channel> channel,
                               c10::intrusive_ptr<c10d::ProcessGroup> group, std::uint64_t seed,
                               bool copies_to_host)
    : Compression(seed),
      channel_(std::move(channel)),
      group_(std::move(group)),
      copies_to_host_(copies_to_host) {}

std::vector<LayerPtr> DdpCompression::layers_of(const c10d::GradBucket& bucket) const {
  std::vector<LayerPtr> layers;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    layers.push_back(layer_of(parameter.unsafeGetTensorImpl()));
  }
  return layers;
}

FuturePtr DdpCompression::average_by_group(const c10d::GradBucket& bucket) const {
  for (const LayerPtr& layer : layers_of(bucket)) {
    const Rule& rule = layer->rule;
    const bool only_averages = !rule.has_momentum() && rule.weight_decay == 0 && local_clip_ == 0;
    TORCH_CHECK_TYPE(only_averages, "gradwire: ", rule.layer_name(),
                     " has a gradient that residual compression cannot take, of ",
                     bucket.getBuffer().scalar_type(), " and ", bucket.getBuffer().layout(),
                     " layout: it takes dense ones of float32, float16 and bfloat16");
  }
  at::Tensor buffer = bucket.getBuffer();
  count_exact(layers_of(bucket), buffer);
  if (buffer.is_sparse()) {  // as DDP does, to the bit
    buffer.div_(channel_->size());
  } else {
    buffer.mul_(1.0 / channel_->size());
  }
  std::vector<at::Tensor> tensors{buffer};
  return group_->allreduce(tensors)->getFuture();
}

FuturePtr DdpCompression::average(c10d::GradBucket& bucket) {
  begin_exchange();
  // Not always index 0: with `skip_all_reduce_unused_params` DDP leaves out buckets.
  const bool first = bucket.getIndex() <= last_bucket_;
  last_bucket_ = bucket.getIndex();
  if (first) {
    count_step();
    waiting_.clear();  // of a backward pass that failed
  }
  const std::shared_ptr<Communicator> communicator = channel_->communicator();
  const CallSpan span(communicator, "hook", bucket_name(bucket), bytes_in(bucket.getBuffer()),
                      step());
  if (chooser_) show_to_chooser(bucket);
  const FuturePtr future =
      is_supported(bucket.getBuffer()) ? average_here(bucket) : average_by_group(bucket);
  const bool waits = local_clip_ > 0 || (chooser_ && chooser_->waits());
  if (!waits || bucket.isLast()) {
    const std::vector<Waiting> ready = std::exchange(waiting_, {});
    if (local_clip_ > 0) clip(ready);
    for (const Waiting& each : ready) start(each);
  }
  return future;
}

FuturePtr DdpCompression::average_here(const c10d::GradBucket& bucket) {
  OperationOptions options = options_at(step());
  options.average = true;
  waiting_.push_back({bucket, options, std::make_shared<Completion>(bucket.getBuffer())});
  Completion& completion = *waiting_.back().completion;
  completion.show(*channel_->communicator(), bucket_name(bucket), step());
  return completion.future();
}

void DdpCompression::show_to_chooser(const c10d::GradBucket& bucket) const {
  if (exact_scopes > 0) chooser_->leave_out();
  if (!chooser_->observes()) return;
  for (const LayerPtr& layer : layers_of(bucket)) chooser_->ready(layer->rule.layer_name());
  if (is_supported(bucket.getBuffer())) chooser_->see(bucket.getBuffer());
}

void DdpCompression::clip(const std::vector<Waiting>& ready) const {
  const at::NoGradGuard no_grad;
  double energy = 0;
  for (const Waiting& each : ready) {
    const double norm = each.bucket.getBuffer().norm(2, at::kFloat).item<double>();
    energy += norm * norm;
  }
  const double norm = std::sqrt(energy);
  if (!(norm > local_clip_)) return;  // nor for NaN, which must arrive
  for (const Waiting& each : ready) at::Tensor(each.bucket.getBuffer()).mul_(local_clip_ / norm);
}

void DdpCompression::decay(const LayerState& layer, const at::Tensor& parameter,
                           const at::Tensor& range) {
  const at::NoGradGuard no_grad;
  const float share = layer.rule.weight_decay;
  if (share != 0) as_gradient_of(parameter, range).add_(parameter, share);
}

void DdpCompression::watch(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    LayerState& layer = *layers_.at(parameter.unsafeGetTensorImpl());
    if (layer.use) continue;
    const auto use = std::make_shared<LayerUse>();
    if (!watch_gradients(parameter, use)) continue;  // DDP does not exchange it
    layer.use = use;
    look_for_misuse(layer);
  }
}

std::vector<LayerUse::Findings> DdpCompression::agree_on(
    std::vector<LayerUse::Findings> findings, const std::vector<LayerPtr>& layers) const {
  const bool feedback = std::any_of(layers.begin(), layers.end(), [](const LayerPtr& layer) {
    return layer->rule.has_feedback();
  });
  if (!finds_unused_ || !feedback) {  // then DDP expects that all ranks use all layers
    for (LayerUse::Findings& each : findings) each.used = true;
    return findings;
  }
  std::vector<float> told;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool used = findings[i].used || !layers[i]->rule.has_feedback();
    for (const bool fact : {used, findings[i].added, findings[i].discarded}) told.push_back(fact);
  }
  const Tensor tensor{.name = "used", .view = {told.data(), told.size(), Dtype::f32}};
  try {
    channel_->communicator()->all_reduce({&tensor, 1}).wait();
  } catch (const Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", error.what());
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    findings[i] = {told[3 * i] > 0, told[3 * i + 1] > 0, told[3 * i + 2] > 0};
  }
  return findings;
}

std::vector<bool> DdpCompression::used_of(const c10d::GradBucket& bucket,
                                          const std::vector<LayerPtr>& layers) const {
  std::vector<LayerUse::Findings> found;
  for (const LayerPtr& layer : layers) {
    found.push_back(layer->use ? layer->use->take_findings() : LayerUse::Findings{.used = true});
  }
  const auto agreed = agree_on(found, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string misuse = misuse_of(*layers[i], agreed[i], kInsteadOfThrowingAway);
    TORCH_CHECK_VALUE(misuse.empty(), "gradwire: ", misuse);
  }
  std::vector<bool> used;
  const auto parameters = bucket.getParameters();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    used.push_back(agreed[i].used);
    if (layers[i]->use && used[i]) {
      layers[i]->use->exchanged({parameters[i], parameters[i]});
    }
  }
  return used;
}

TensorView DdpCompression::numbers_of(const Waiting& waiting) const {
  const at::Tensor& buffer = waiting.bucket.getBuffer();
  if (!copies_to_host_ && buffer.is_cpu()) return view_of(buffer);
  at::Tensor host =
      at::empty(buffer.sizes(), buffer.options().device(at::kCPU).pinned_memory(!buffer.is_cpu()));
  host.copy_(buffer);  // waits for the device
  waiting.completion->at_end([host, buffer]() mutable { buffer.copy_(host); });
  return view_of(host);
}

void DdpCompression::start(const Waiting& waiting) {
  const auto layers = layers_of(waiting.bucket);
  const auto ranges = ranges_of(waiting.bucket);
  const auto parameters = waiting.bucket.getParameters();
  const std::vector<bool> used = used_of(waiting.bucket, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (used[i]) decay(*layers[i], parameters[i], ranges[i]);
  }
  const TensorView numbers = numbers_of(waiting);
  OperationOptions options = waiting.options;
  std::vector<Tensor> tensors;
  std::vector<LayerPtr> exchanged;
  std::vector<std::uint64_t> bytes;  // that an exact exchange sends
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!used[i]) continue;
    const auto first = ranges[i].storage_offset() - waiting.bucket.getBuffer().storage_offset();
    const TensorView part =
        numbers.slice(static_cast<std::size_t>(first), static_cast<std::size_t>(ranges[i].numel()));
    const Way way = take_way(*layers[i], *options.step);
    if (measures(*layers[i], *options.step)) options.measure_error = true;
    const Rule& rule = layers[i]->rule;
    tensors.push_back({rule.name, part, way, std::string(rule.layer_name())});
    exchanged.push_back(layers[i]);
    bytes.push_back(exact_bytes(part.count * size_of(part.dtype),
                                static_cast<std::uint64_t>(channel_->size())));
  }
  if (!tensors.empty()) {
    Work work = channel_->communicator()->all_reduce(tensors, options);
    waiting.completion->add(
        std::move(work),
        [ledger = ledger_, arrivals = chooser_ ? chooser_->arrivals() : nullptr,
         ranks = channel_->size(), tensors = std::move(tensors), layers = std::move(exchanged),
         bytes = std::move(bytes)](const Work& done) {
          if (arrivals) arrivals->came();
          const Statistics statistics = done.statistics();
          ledger->count(layers, bytes, statistics);
          ledger->see(layers, statistics, ranks, 1);
          for (std::size_t i = 0; i < layers.size(); ++i) {
            if (layers[i]->use) layers[i]->use->result_is(tensors[i].view);
          }
        });
  }
  waiting.completion->seal();
}

void DdpCompression::count_exact(const std::vector<LayerPtr>& layers,
                                 const at::Tensor& buffer) const {
  const auto ranks = static_cast<std::uint64_t>(channel_->size());
  std::vector<std::uint64_t> bytes;
  for (const LayerPtr& layer : layers) {
    bytes.push_back(buffer.is_sparse()  // gathered from all ranks, alone in its bucket
                        ? bytes_to_all(bytes_in(buffer), ranks)
                        : exact_bytes(layer->rule.elements * buffer.element_size(), ranks));
  }
  ledger_->count_exact(layers, bytes);
}

FuturePtr Hook::runHook(c10d::GradBucket& bucket) {
  const auto& other = compression_->hook_of_user;
  return other ? other->runHook(bucket) : compression_->average(bucket);
}

at::Tensor Hook::parseHookResult(const c10::IValue& result) {
  const auto& other = compression_->hook_of_user;
  return other ? other->parseHookResult(result) : c10d::detail::parseCppCommHookResult(result);
}

}  // namespace gradwire::pytorch
