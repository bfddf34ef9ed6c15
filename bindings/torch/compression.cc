#include "compression.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "plan/route.h"

namespace gradwire::pytorch {
namespace {

constexpr int kOwedExchanges = 3;  // `LayerUse` finds in the third what was done with the first
constexpr std::uint64_t kStepsPerMeasurement = 50;  // of errors, which costs a decoding

template <class Predicate>
bool any_stage(const Rule& rule, Predicate predicate) {
  const Stage* const now = &stage_at(rule.stages, rule.step);
  const Stage* const end = rule.stages.data() + rule.stages.size();
  return std::any_of(now, end, [&](const Stage& stage) { return predicate(stage.way); });
}

bool has_momentum(const Way& way) { return way.feedback && way.feedback->momentum != 0; }

/// Whether an exchange leaves something for the next one.
bool keeps(const Way& way) {
  return has_momentum(way) || (way.feedback && !way.codec.traits().lossless);
}

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

/// A range with the sizes and strides of its gradient. DDP lays a gradient out as its parameter is
/// (channels_last, for instance) if that has neither gaps nor overlaps.
at::Tensor as_gradient_of(const at::Tensor& parameter, const at::Tensor& range) {
  return parameter.is_non_overlapping_and_dense()
             ? range.as_strided(parameter.sizes(), parameter.strides())
             : range.view(parameter.sizes());
}

/// DDP's call of the hook, in torch.profiler's traces and in ours.
class HookSpan {
 public:
  HookSpan(const std::shared_ptr<Communicator>& communicator, const c10d::GradBucket& bucket,
           std::uint64_t step)
      : communicator_(communicator), profiled_(at::RecordScope::USER_SCOPE) {
    if (profiled_.isActive()) profiled_.before("gradwire: hook");
    trace::Recorder* recorder = communicator->recorder();
    if (recorder == nullptr) return;
    event_ = {.begin_ns = trace::now_ns(),
              .number = step,
              .bytes = bucket.getBuffer().nbytes(),
              .what = recorder->text("hook"),
              .layer = recorder->text(bucket_name(bucket)),
              .kind = trace::Kind::hook};
  }
  ~HookSpan() {
    if (communicator_->recorder() == nullptr) return;
    event_.end_ns = trace::now_ns();
    communicator_->recorder()->add(event_);
  }
  HookSpan(const HookSpan&) = delete;
  HookSpan& operator=(const HookSpan&) = delete;

 private:
  const std::shared_ptr<Communicator> communicator_;
  at::RecordFunction profiled_;
  trace::Event event_;
};

}  // namespace

std::string_view Rule::layer_name() const {
  return std::string_view(name).substr(name.find('/') + 1);  // npos + 1 is 0: all of it
}

bool Rule::has_feedback() const {
  return owed_exchanges > 0 ||
         any_stage(*this, [](const Way& way) { return way.feedback.has_value(); });
}

bool Rule::has_momentum() const { return any_stage(*this, pytorch::has_momentum); }

bool Rule::keeps_something() const { return owed_exchanges > 0 || any_stage(*this, keeps); }

Compression::Compression(std::shared_ptr<Channel> channel,
                         c10::intrusive_ptr<c10d::ProcessGroup> group, std::uint64_t seed,
                         bool copies_to_host)
    : channel_(std::move(channel)),
      group_(std::move(group)),
      seed_(seed),
      copies_to_host_(copies_to_host) {}

void Compression::set_rules(std::unordered_map<const void*, Rule> rules) {
  for (auto& [parameter, rule] : rules) {
    LayerPtr& layer = layers_[parameter];
    if (!layer) layer = std::make_shared<Layer>();
    const std::lock_guard lock(ledger_->mutex);
    layer->totals.name = rule.name;
    layer->totals.codec.clear();
    layer->totals.elements = rule.elements;
    rule.step = steps_;
    rule.owed_exchanges = layer->rule.owed_exchanges;
    layer->rule = std::move(rule);
    look_for_misuse(*layer);
  }
}

std::vector<Compression::LayerPtr> Compression::layers_of(const c10d::GradBucket& bucket) const {
  std::vector<LayerPtr> layers;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const auto found = layers_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != layers_.end(),
                "gradwire: the model has a parameter that it did not have when compression began; "
                "call gradwire.torch.compress again after changing it");
    layers.push_back(found->second);
  }
  return layers;
}

FuturePtr Compression::average_by_group(const c10d::GradBucket& bucket) const {
  for (const LayerPtr& layer : layers_of(bucket)) {
    const Rule& rule = layer->rule;
    const bool only_averages = !rule.has_momentum() && rule.weight_decay == 0 && local_clip_ == 0;
    TORCH_CHECK_TYPE(only_averages, "gradwire: ", rule.layer_name(),
                     " has a gradient that residual compression cannot take, of ",
                     bucket.getBuffer().scalar_type(), " and ", bucket.getBuffer().layout(),
                     " layout: it takes dense ones of float32, float16 and bfloat16");
  }
  at::Tensor buffer = bucket.getBuffer();
  ledger_->count_exact(layers_of(bucket), buffer, static_cast<std::uint64_t>(channel_->size()));
  if (buffer.is_sparse()) {  // as DDP does, to the bit
    buffer.div_(channel_->size());
  } else {
    buffer.mul_(1.0 / channel_->size());
  }
  std::vector<at::Tensor> tensors{buffer};
  return group_->allreduce(tensors)->getFuture();
}

FuturePtr Compression::average(c10d::GradBucket& bucket) {
  if (before_first_exchange) {
    const auto call = before_first_exchange;  // which may set another
    call();
    before_first_exchange = nullptr;
  }
  // Not always index 0: with `skip_all_reduce_unused_params` DDP leaves out buckets.
  const bool first = bucket.getIndex() <= last_bucket_;
  last_bucket_ = bucket.getIndex();
  const std::uint64_t step = first ? steps_++ : steps_ - 1;
  if (first) waiting_.clear();  // of a backward pass that failed
  const std::shared_ptr<Communicator> communicator = channel_->communicator();
  const HookSpan span(communicator, bucket, step);
  if (!is_supported(bucket.getBuffer())) return average_by_group(bucket);

  const bool measured = step % kStepsPerMeasurement == 0 && exact_scopes == 0;
  OperationOptions options;
  options.seed = seed_;
  options.step = step;
  options.average = true;
  options.measure_error = measured;
  waiting_.push_back({bucket, options, std::make_shared<Completion>(bucket.getBuffer())});
  waiting_.back().completion->show(*communicator, bucket_name(bucket), step);
  const FuturePtr future = waiting_.back().completion->future();
  if (local_clip_ == 0 || bucket.isLast()) {
    const std::vector<Waiting> ready = std::exchange(waiting_, {});
    if (local_clip_ > 0) clip(ready);
    for (const Waiting& each : ready) start(each);
  }
  return future;
}

void Compression::clip(const std::vector<Waiting>& ready) const {
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

void Compression::decay(const Layer& layer, const at::Tensor& parameter, const at::Tensor& range) {
  const at::NoGradGuard no_grad;
  const float share = layer.rule.weight_decay;
  if (share != 0) as_gradient_of(parameter, range).add_(parameter, share);
}

void Compression::watch(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    Layer& layer = *layers_.at(parameter.unsafeGetTensorImpl());
    if (layer.use) continue;
    const auto use = std::make_shared<LayerUse>();
    if (!watch_gradients(parameter, use)) continue;  // DDP does not exchange it
    layer.use = use;
    look_for_misuse(layer);
  }
}

void Compression::look_for_misuse(Layer& layer) {
  const Rule& rule = layer.rule;
  if (layer.use) {
    layer.use->look_for(rule.has_momentum() || rule.weight_decay != 0, rule.keeps_something());
  }
}

void Compression::count_owed(Layer& layer, const Way& way, std::uint64_t step) {
  Rule& rule = layer.rule;
  const bool kept = rule.keeps_something();
  rule.step = step;
  if (keeps(way)) {
    rule.owed_exchanges = kOwedExchanges;
  } else if (!way.feedback && rule.owed_exchanges > 0) {
    --rule.owed_exchanges;
  }
  if (rule.keeps_something() != kept) look_for_misuse(layer);
}

void Compression::set_steps(std::uint64_t steps) {
  steps_ = steps;
  for (const auto& [parameter, layer] : layers_) {
    Rule& rule = layer->rule;
    rule.step = 0;  // what came before may have left something
    rule.owed_exchanges = rule.keeps_something() ? kOwedExchanges : 0;
    rule.step = steps;
    look_for_misuse(*layer);
  }
}

bool Compression::has_feedback() const {
  return std::ranges::any_of(layers_,
                             [](const auto& each) { return each.second->rule.has_feedback(); });
}

void Compression::check_received_once(const Layer& layer, const LayerUse::Findings& findings) {
  TORCH_CHECK_VALUE(!findings.added, "gradwire: ", layer.rule.layer_name(),
                    " got several gradients for one step of the optimizer, of which the first "
                    "entered its momentum twice: where several backward passes make one step, put "
                    "`with model.no_sync():` around all but the last, with their forward passes. "
                    "Set the gradient to zero after every step, also of layers that no optimizer "
                    "has (model.zero_grad())");
  TORCH_CHECK_VALUE(!findings.discarded, "gradwire: ", layer.rule.layer_name(),
                    " got a gradient that was exchanged and then thrown away without a step of the "
                    "optimizer, but feedback keeps part of it, and its momentum, for later steps. "
                    "If the gradient is not wanted, put `with model.no_sync():` around that "
                    "forward and backward pass, or freeze the parameters meanwhile with "
                    "requires_grad_(False). Do not skip steps of the optimizer under feedback, or "
                    "compress without feedback");
}

std::vector<LayerUse::Findings> Compression::agree_on(std::vector<LayerUse::Findings> findings,
                                                      const std::vector<LayerPtr>& layers) const {
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

std::vector<bool> Compression::used_of(const c10d::GradBucket& bucket,
                                       const std::vector<LayerPtr>& layers) const {
  std::vector<LayerUse::Findings> found;
  for (const LayerPtr& layer : layers) {
    found.push_back(layer->use ? layer->use->take_findings() : LayerUse::Findings{.used = true});
  }
  const auto agreed = agree_on(found, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) check_received_once(*layers[i], agreed[i]);
  std::vector<bool> used;
  const auto parameters = bucket.getParameters();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    used.push_back(agreed[i].used);
    if (layers[i]->use && used[i]) layers[i]->use->exchanged(parameters[i]);
  }
  return used;
}

TensorView Compression::numbers_of(const Waiting& waiting) const {
  const at::Tensor& buffer = waiting.bucket.getBuffer();
  if (!copies_to_host_ && buffer.is_cpu()) return view_of(buffer);
  at::Tensor host =
      at::empty(buffer.sizes(), buffer.options().device(at::kCPU).pinned_memory(!buffer.is_cpu()));
  host.copy_(buffer);  // waits for the device
  waiting.completion->at_end([host, buffer]() mutable { buffer.copy_(host); });
  return view_of(host);
}

void Compression::start(const Waiting& waiting) {
  const auto layers = layers_of(waiting.bucket);
  const auto ranges = ranges_of(waiting.bucket);
  const auto parameters = waiting.bucket.getParameters();
  const std::vector<bool> used = used_of(waiting.bucket, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (used[i]) decay(*layers[i], parameters[i], ranges[i]);
  }
  const TensorView numbers = numbers_of(waiting);
  const std::uint64_t step = *waiting.options.step;
  const auto communicator = channel_->communicator();
  const auto start_one = [&](const std::vector<Tensor>& tensors, std::vector<LayerPtr> of) {
    waiting.completion->add(communicator->all_reduce(tensors, waiting.options),
                            [ledger = ledger_, size = size_of(numbers.dtype),
                             ranks = static_cast<std::uint64_t>(channel_->size()),
                             of = std::move(of)](const Work& work) {
                              ledger->count(of, size, ranks, work.statistics());
                            });
  };
  struct Together {
    std::vector<Tensor> tensors;
    std::vector<LayerPtr> layers;
  };
  std::map<std::string, Together> exact;  // by route
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!used[i]) continue;
    const auto first = ranges[i].storage_offset() - waiting.bucket.getBuffer().storage_offset();
    const TensorView part =
        numbers.slice(static_cast<std::size_t>(first), static_cast<std::size_t>(ranges[i].numel()));
    const Rule& rule = layers[i]->rule;
    Way way = stage_at(rule.stages, step).way;
    if (exact_scopes > 0) way.codec = Way{}.codec;
    count_owed(*layers[i], way, step);
    const Tensor tensor{.name = rule.name, .view = part, .way = way};
    if (way.codec.traits().lossless) {
      Together& together = exact[way.route];
      together.tensors.push_back(tensor);
      together.layers.push_back(layers[i]);
    } else {
      // An operation of its own: who sums up which part, and with it every bit, must not depend on
      // what else is in the bucket, which changes in the second step and after a restart.
      start_one({tensor}, {layers[i]});
    }
  }
  for (auto& [route, together] : exact) start_one(together.tensors, std::move(together.layers));
  waiting.completion->seal();
}

void Compression::Ledger::count_exact(const std::vector<LayerPtr>& layers, const at::Tensor& buffer,
                                      std::uint64_t ranks) {
  const std::lock_guard lock(mutex);
  for (const LayerPtr& layer : layers) {
    LayerTotals& totals = layer->totals;
    totals.codec = Way{}.text();
    const std::uint64_t bytes =
        buffer.is_sparse()  // gathered from all ranks, alone in its bucket
            ? (buffer._values().nbytes() + buffer._indices().nbytes()) * (ranks - 1)
            : exact_bytes(totals.elements * buffer.element_size(), ranks);
    totals.bytes += bytes;
    totals.sent_bytes += bytes;
  }
}

void Compression::Ledger::count(const std::vector<LayerPtr>& layers,
                                std::uint64_t bytes_per_element, std::uint64_t ranks,
                                const Statistics& statistics) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerTotals& totals = layers[i]->totals;
    const TensorStatistics& cost = statistics.tensors[i];
    totals.bytes += exact_bytes(totals.elements * bytes_per_element, ranks);
    totals.sent_bytes += cost.sent_bytes;
    totals.squared_error += cost.squared_error;
    totals.energy += cost.energy;
  }
}

std::vector<LayerTotals> Compression::totals() const {
  const std::lock_guard lock(ledger_->mutex);
  std::vector<LayerTotals> totals;
  for (const auto& [parameter, layer] : layers_) {
    totals.push_back(layer->totals);
    std::string& codec = totals.back().codec;
    const Rule& rule = layer->rule;
    if (codec.empty()) codec = stage_at(rule.stages, rule.step).way.codec.spec();
  }
  return totals;
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
