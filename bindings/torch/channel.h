// The ranks of one process group, connected by gradwire's own transport.
//
// Compressed tensors never go through the group's backend: what a user does there at the same time
// cannot get between. Threads: any, but all ranks make the same calls in the same order.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/communicator.h"
#include "trace/recorder.h"

namespace gradwire::pytorch {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

struct ChannelOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};          ///< for each operation
  std::chrono::milliseconds connect_timeout{0};  ///< for connecting
  std::string secret{};                          ///< as in `ConnectOptions`
  std::string interface {};
  std::string trace{};                     ///< likewise
  std::vector<std::uint32_t> job_ranks{};  ///< likewise
};

/// Another rank has called `Channel::give_up`; `what()` is its reason.
class RankRaised : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Channel {
 public:
  /// Waits for all ranks. Throws `c10::DistBackendError`.
  Channel(const c10::intrusive_ptr<c10d::Store>& store, const ChannelOptions& options);

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  /// Throws `c10::DistBackendError` after `close`.
  std::shared_ptr<Communicator> communicator() const;

  /// The texts of all ranks, in their order. All ranks call it together; it waits for them, for
  /// twice the timeout at most. Throws `c10::DistBackendError`, also when a rank sends no text, and
  /// `RankRaised` when one has called `give_up`.
  std::vector<std::string> all_gather_text(const std::string& text,
                                           std::chrono::milliseconds timeout) const;

  /// In the place of `all_gather_text`, for a rank that raises before it: the others hear why.
  /// Waits for nobody.
  void give_up(const std::string& reason) const;

  /// Operations that are not done fail; whatever comes later is refused. May be repeated.
  void close();

 private:
  const ChannelOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<Communicator> communicator_;  // guarded by mutex_
};

/// A call by DDP or FSDP2, as long as this lives: in torch.profiler's traces as "gradwire: " and
/// `what`, and in ours.
class CallSpan {
 public:
  CallSpan(std::shared_ptr<Communicator> communicator, const std::string& what,
           const std::string& layer, std::size_t bytes, std::uint64_t step);
  ~CallSpan();
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

 private:
  const std::shared_ptr<Communicator> communicator_;
  at::RecordFunction profiled_;
  trace::Event event_;
};

/// Collects works and completes one future when all of them are done: with the tensor that they
/// fill, or with the first error.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  explicit Completion(at::Tensor result);

  /// Shows it in torch.profiler's traces and in ours, from now until the future completes. Before
  /// anything is added.
  void show(Communicator& communicator, const std::string& layer, std::uint64_t step);

  FuturePtr future() const { return future_; }
  /// Before `seal`. `then` is called before the future completes, on the communicator's thread.
  void add(Work work, std::function<void(const Work&)> then = {});
  /// Before `seal`. Called before the future completes without an error.
  void at_end(std::function<void()> call) { at_end_ = std::move(call); }
  /// No more works will be added.
  void seal() { finish_one(nullptr); }

 private:
  void finish_one(const Error* error);
  void end_of_show();

  at::Tensor result_;
  std::function<void()> at_end_;
  FuturePtr future_;
  std::atomic<std::size_t> open_{1};
  std::mutex mutex_;
  std::string first_error_;                       // guarded by mutex_
  std::unique_ptr<at::RecordFunction> profiled_;  // by torch.profiler
  std::optional<at::ThreadLocalState> profiler_;  // that of the thread which began
  trace::Recorder* recorder_ = nullptr;           // of the communicator, which outlives its works
  trace::Event shown_;
};

/// A view of a dense, contiguous CPU tensor of a dtype that codecs take, or an error that says so.
TensorView view_of(const at::Tensor& tensor);
/// Whether codecs take its layout and dtype.
bool is_supported(const at::Tensor& tensor);

}  // namespace gradwire::pytorch
