// Gradients, and weights if asked for, of FSDP2's fully_shard.
//
// FSDP2 calls Python for every group of parameters, which calls what is here. It waits for results.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "channel.h"
#include "compression.h"

namespace gradwire::pytorch {

class ShardExchange;

/// Parameters are known by the identity of FSDP's own records of them (`FSDPParam`).
class FsdpCompression final : public Compression {
 public:
  /// `rank` is that in the whole job, for messages.
  FsdpCompression(int rank, std::uint64_t seed) : Compression(seed), rank_(rank) {}

  /// For checkpoints: steps, and by the first parameter of each group, how often an optimizer has
  /// changed the group's weights, on which their random numbers depend.
  using Counters = std::pair<std::uint64_t, std::map<std::string, std::uint64_t>>;
  Counters counters() const { return {steps(), updates_}; }
  void set_counters(Counters counters);

 private:
  friend ShardExchange;

  const int rank_;
  std::set<const ShardExchange*> in_step_;  // those that have been called in the last step so far
  std::map<std::string, std::uint64_t> updates_;
};

/// One parameter of a group, and how many numbers each rank has of it.
struct Shard {
  const void* parameter = nullptr;
  std::size_t elements = 0;
};

/// A parameter that has a gradient.
struct ShardGradient {
  const void* parameter = nullptr;
  Weights weights;
  std::optional<at::Tensor> sum;  ///< to which this rank's gradient will be added
};

/// What is exchanged of the parameters that FSDP2 has put into one group (`FSDPParamGroup`). Its
/// tensors have for every rank the shards of all parameters, one behind the other.
class ShardExchange {
 public:
  /// `weights` is how those travel that have a lossy gradient; none: all exactly. After
  /// `Compression::set_rules`; a step ends with it.
  ShardExchange(std::shared_ptr<FsdpCompression> compression, const std::vector<Shard>& shards,
                std::optional<Way> weights);

  /// The backward pass of the group is done, and these parameters have a gradient: not those that
  /// are frozen or were not used. `partial`: FSDP2 keeps the result for a later pass, which sums
  /// over replicas (`set_requires_all_reduce(False)`). `channels` lead to all ranks that train the
  /// model: they are told when this one cannot go on. Throws where what was exchanged before was
  /// thrown away.
  void begin(const std::vector<ShardGradient>& gradients,
             std::vector<std::shared_ptr<Channel>> channels, bool partial);

  // These return false for what codecs cannot take: the caller has the process group do it.
  // Gradients are then counted as exact, weights not at all, as where none are compressed.
  // Otherwise these wait until it is done, and throw as `Work::wait`.

  /// `output` becomes the sum, or average, of this rank's part of all ranks' `input`.
  bool reduce_scatter(const Channel& channel, const at::Tensor& output, const at::Tensor& input,
                      const c10d::ReduceOp& op);
  /// `tensor`, which has this rank's shards, becomes the sum over all replicas of them (HSDP).
  bool all_reduce(const Channel& channel, const at::Tensor& tensor, const c10d::ReduceOp& op);
  /// `output` becomes what all ranks decode of one another's weights. Between two updates it is the
  /// same, to the bit.
  bool all_gather(const Channel& channel, const at::Tensor& output, const at::Tensor& input);

  /// An optimizer has changed the weights.
  void count_update() { ++compression_->updates_[update_name()]; }

 private:
  struct Part {
    LayerPtr layer;
    std::size_t elements = 0;
    Way way{};  ///< of gradients in this step, or of weights
  };

  void see_use(LayerState& layer, const ShardGradient& gradient) const;
  /// What this rank's shards have become.
  void see_results(const at::Tensor& shards) const;
  const std::string& update_name() const { return all_.front().layer->rule.name; }
  Way weight_way(const LayerState& layer) const;
  /// Fails the exchanges of all ranks that train the model: they wait for this one, or for others
  /// that do.
  void abort(const std::string& why) const;
  /// Waits. Throws its error as torch's, like that of every exchange.
  void finish(Work& work) const;
  /// Shows a call, under the name of the group's first layer.
  CallSpan span(const Channel& channel, const char* what, const at::Tensor& tensor,
                std::uint64_t step) const;
  OperationOptions gradient_options(const c10d::ReduceOp& op) const;

  /// Whether codecs take it, and it holds the parts so many times.
  static bool takes(const at::Tensor& tensor, const std::vector<Part>& parts, int times);
  /// Views of these, under names with the suffix.
  static std::vector<Tensor> tensors_of(const at::Tensor& whole, const std::vector<Part>& parts,
                                        int times, const std::string& suffix);
  /// By part, what an exact exchange sends that sends so much of so many bytes.
  using Sends = std::uint64_t (*)(std::uint64_t bytes, std::uint64_t ranks);
  static std::vector<std::uint64_t> bytes_of(const std::vector<Part>& parts,
                                             const at::Tensor& tensor, const Channel& channel,
                                             Sends sends);
  static std::vector<LayerPtr> layers_of(const std::vector<Part>& parts);
  /// Counts gradients. False.
  bool leave_to_group(const std::vector<std::uint64_t>& exact_bytes) const;
  /// For codecs to be adapted by: what sums of gradients over so many ranks showed.
  void see(const Work& work, int ranks, const c10d::ReduceOp& op) const;
  void count(const std::vector<Part>& parts, const std::vector<std::uint64_t>& exact_bytes,
             const Work& work) const;

  const std::shared_ptr<FsdpCompression> compression_;
  const std::optional<Way> weights_;
  std::map<const void*, std::size_t> places_;  // in `all_`, by parameter
  std::vector<Part> all_;
  std::vector<Part> present_;                       // those that have a gradient in this step
  bool measured_ = false;                           // whether their errors are
  std::vector<std::shared_ptr<Channel>> channels_;  // of the last exchange of gradients
};

}  // namespace gradwire::pytorch
