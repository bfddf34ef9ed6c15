#include "fsdp_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "plan/route.h"

namespace gradwire::pytorch {
namespace {

bool is_sum(const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
}

}  // namespace

void FsdpCompression::set_counters(Counters counters) {
  set_steps(counters.first);
  updates_ = std::move(counters.second);
}

ShardExchange::ShardExchange(std::shared_ptr<FsdpCompression> compression,
                             const std::vector<Shard>& shards, std::optional<Way> weights)
    : compression_(std::move(compression)), weights_(std::move(weights)) {
  TORCH_CHECK_VALUE(!shards.empty(), "gradwire: a group of parameters has none");
  for (const Shard& shard : shards) {
    places_[shard.parameter] = all_.size();
    all_.push_back({compression_->layer_of(shard.parameter), shard.elements});
  }
  compression_->in_step_.clear();
}

void ShardExchange::begin(const std::vector<ShardGradient>& gradients,
                          std::vector<std::shared_ptr<Channel>> channels, bool partial) {
  compression_->begin_exchange();
  channels_ = std::move(channels);
  // Every group has one exchange in a step: when one comes again, the next has begun.
  auto& in_step = compression_->in_step_;
  if (in_step.empty() || in_step.contains(this)) {
    compression_->count_step();
    in_step.clear();
  }
  in_step.insert(this);
  present_.clear();
  measured_ = false;
  for (const ShardGradient& gradient : gradients) {
    Part part = all_[places_.at(gradient.parameter)];
    if (!partial) see_use(*part.layer, gradient);
    part.way = FsdpCompression::take_way(*part.layer, compression_->step());
    if (compression_->measures(*part.layer, compression_->step())) measured_ = true;
    present_.push_back(std::move(part));
  }
}

void ShardExchange::see_use(LayerState& layer, const ShardGradient& gradient) const {
  if (!layer.use) {
    if (!layer.rule.keeps_something()) return;
    layer.use = std::make_shared<LayerUse>();
    FsdpCompression::look_for_misuse(layer);
  }
  if (gradient.weights.numbers.numel() == 0) return;  // nothing shows in an empty shard
  layer.use->gradient_comes(gradient.weights, gradient.sum.value_or(at::Tensor()));
  const std::string misuse = FsdpCompression::misuse_of(layer, layer.use->take_findings(), "");
  if (!misuse.empty()) {
    abort("rank " + std::to_string(compression_->rank_) + " gave up: " + misuse);
    TORCH_CHECK_VALUE(false, "gradwire: ", misuse);
  }
  layer.use->exchanged(gradient.weights);
}

void ShardExchange::abort(const std::string& why) const {
  for (const auto& channel : channels_) channel->communicator()->abort(why);
}

void ShardExchange::finish(Work& work) const {
  try {
    work.wait();
  } catch (const Error& error) {
    abort(error.what());
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", error.what());
  }
}

CallSpan ShardExchange::span(const Channel& channel, const char* what, const at::Tensor& tensor,
                             std::uint64_t step) const {
  const std::string layer(all_.front().layer->rule.layer_name());
  return {channel.communicator(), what, layer, tensor.nbytes(), step};
}

void ShardExchange::see_results(const at::Tensor& shards) const {
  std::size_t first = 0;
  const TensorView numbers = view_of(shards);
  for (const Part& part : present_) {
    if (part.layer->use) part.layer->use->result_is(numbers.slice(first, part.elements));
    first += part.elements;
  }
}

bool ShardExchange::reduce_scatter(const Channel& channel, const at::Tensor& output,
                                   const at::Tensor& input, const c10d::ReduceOp& op) {
  const int ranks = channel.size();
  const auto exact = bytes_of(present_, input, channel, bytes_to_all);
  if (!is_sum(op) || !takes(input, present_, ranks)) return leave_to_group(exact);
  const CallSpan shown = span(channel, "reduce_scatter", input, compression_->step());
  Work work = channel.communicator()->reduce_scatter(tensors_of(input, present_, ranks, ""),
                                                     gradient_options(op));
  finish(work);
  output.copy_(input.view({ranks, -1})[channel.rank()]);
  see_results(output);
  count(present_, exact, work);
  see(work, ranks, op);
  return true;
}

bool ShardExchange::all_reduce(const Channel& channel, const at::Tensor& tensor,
                               const c10d::ReduceOp& op) {
  const auto exact = bytes_of(present_, tensor, channel, exact_bytes);
  if (!is_sum(op) || !takes(tensor, present_, 1)) return leave_to_group(exact);
  const CallSpan shown = span(channel, "all_reduce", tensor, compression_->step());
  Work work = channel.communicator()->all_reduce(tensors_of(tensor, present_, 1, "/replicas"),
                                                 gradient_options(op));
  finish(work);
  count(present_, exact, work);
  if (channels_.front()->size() == 1) see(work, channel.size(), op);  // no sums but these
  return true;
}

void ShardExchange::see(const Work& work, int ranks, const c10d::ReduceOp& op) const {
  const double divisor = op == c10d::ReduceOp::AVG ? 1 : ranks;
  compression_->ledger_->see(layers_of(present_), work.statistics(), ranks, divisor);
}

bool ShardExchange::all_gather(const Channel& channel, const at::Tensor& output,
                               const at::Tensor& input) {
  const int ranks = channel.size();
  if (!takes(output, all_, ranks)) return false;
  for (Part& part : all_) part.way = weight_way(*part.layer);
  const auto exact = bytes_of(all_, output, channel, bytes_to_all);
  const std::uint64_t updates = compression_->updates_[update_name()];
  const CallSpan shown = span(channel, "all_gather", output, updates);
  output.view({ranks, -1})[channel.rank()].copy_(input);
  // Its errors do not count: those that are shown are of gradients.
  const OperationOptions options = compression_->options_at(updates);
  Work work =
      channel.communicator()->all_gather(tensors_of(output, all_, ranks, "/weight"), options);
  finish(work);
  Statistics statistics = work.statistics();
  for (TensorStatistics& each : statistics.tensors) each.squared_error = each.measured_energy = 0;
  compression_->ledger_->count(layers_of(all_), exact, statistics);
  return true;
}

Way ShardExchange::weight_way(const LayerState& layer) const {
  return weights_ && !layer.rule.is_exact() ? *weights_ : Way{};
}

OperationOptions ShardExchange::gradient_options(const c10d::ReduceOp& op) const {
  OperationOptions options = compression_->options_at(compression_->step());
  options.step = compression_->steps();  // for random numbers, steps count from 1
  options.average = op == c10d::ReduceOp::AVG;
  options.measure_error = measured_;
  return options;
}

bool ShardExchange::takes(const at::Tensor& tensor, const std::vector<Part>& parts, int times) {
  std::size_t elements = 0;
  for (const Part& part : parts) elements += static_cast<std::size_t>(times) * part.elements;
  return static_cast<std::size_t>(tensor.numel()) == elements && tensor.is_cpu() &&
         is_supported(tensor);
}

std::vector<Tensor> ShardExchange::tensors_of(const at::Tensor& whole,
                                              const std::vector<Part>& parts, int times,
                                              const std::string& suffix) {
  const TensorView numbers = view_of(whole);
  std::vector<Tensor> tensors;
  std::size_t first = 0;
  for (int i = 0; i < times; ++i) {
    for (const Part& part : parts) {
      const TensorView view = numbers.slice(first, part.elements);
      const Rule& rule = part.layer->rule;
      tensors.push_back({rule.name + suffix, view, part.way, std::string(rule.layer_name())});
      first += part.elements;
    }
  }
  return tensors;
}

std::vector<std::uint64_t> ShardExchange::bytes_of(const std::vector<Part>& parts,
                                                   const at::Tensor& tensor, const Channel& channel,
                                                   Sends sends) {
  const auto ranks = static_cast<std::uint64_t>(channel.size());
  std::vector<std::uint64_t> bytes;
  for (const Part& part : parts) {
    bytes.push_back(sends(part.elements * tensor.element_size(), ranks));
  }
  return bytes;
}

bool ShardExchange::leave_to_group(const std::vector<std::uint64_t>& exact_bytes) const {
  compression_->ledger_->count_exact(layers_of(present_), exact_bytes);
  return false;
}

void ShardExchange::count(const std::vector<Part>& parts,
                          const std::vector<std::uint64_t>& exact_bytes, const Work& work) const {
  compression_->ledger_->count(layers_of(parts), exact_bytes, work.statistics());
}

std::vector<LayerPtr> ShardExchange::layers_of(const std::vector<Part>& parts) {
  std::vector<LayerPtr> layers;
  for (const Part& part : parts) layers.push_back(part.layer);
  return layers;
}

}  // namespace gradwire::pytorch
