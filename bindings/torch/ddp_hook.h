// Gradients of DistributedDataParallel, by a communication hook in C++.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "channel.h"
#include "compression.h"

namespace gradwire::pytorch {

/// Parameters are known by `Tensor._cdata` of Python. Gradients are averaged over the ranks.
class DdpCompression final : public Compression {
 public:
  /// `group` takes what codecs cannot: sparse gradients and other dtypes, exactly. `copies_to_host`
  /// sends copies of buckets also where they could be used in place, for tests.
  DdpCompression(std::shared_ptr<Channel> channel, c10::intrusive_ptr<c10d::ProcessGroup> group,
                 std::uint64_t seed, bool copies_to_host = false);

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

  /// Averages the bucket's buffer in place. The future holds it.
  FuturePtr average(c10d::GradBucket& bucket);

  /// Does all the work from now on, uncompressed. Between steps.
  std::shared_ptr<c10d::CommHookInterface> hook_of_user;

 private:
  struct Waiting {
    c10d::GradBucket bucket;
    OperationOptions options;
    std::shared_ptr<Completion> completion;
  };

  std::vector<LayerPtr> layers_of(const c10d::GradBucket& bucket) const;
  FuturePtr average_by_group(const c10d::GradBucket& bucket) const;
  /// Begins with the step's other buckets, or at once.
  FuturePtr average_here(const c10d::GradBucket& bucket);
  void show_to_chooser(const c10d::GradBucket& bucket) const;
  /// What the group averages: it is as large as it is.
  void count_exact(const std::vector<LayerPtr>& layers, const at::Tensor& buffer) const;
  /// Shrinks the gradients to the norm that was asked for.
  void clip(const std::vector<Waiting>& ready) const;
  /// Adds weights to their gradient, if that was asked for.
  static void decay(const LayerState& layer, const at::Tensor& parameter, const at::Tensor& range);
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
  const bool copies_to_host_;
  /// The bucket that came last. DDP hands them over in the order of their indices, so one that is
  /// not behind it begins a step.
  std::size_t last_bucket_ = std::numeric_limits<std::size_t>::max();
  double local_clip_ = 0;
  bool finds_unused_ = false;
  std::vector<Waiting> waiting_;
};

/// What DDP calls for every bucket. A hook that the user registers later takes over.
class Hook final : public c10d::CommHookInterface {
 public:
  explicit Hook(std::shared_ptr<DdpCompression> compression)
      : compression_(std::move(compression)) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const std::shared_ptr<DdpCompression> compression_;
};

}  // namespace gradwire::pytorch
