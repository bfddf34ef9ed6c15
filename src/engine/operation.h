// One operation as the engine sees it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fork.h"
#include "collective/lifetimes.h"
#include "engine/layout.h"
#include "feedback/residuals.h"
#include "gradwire/communicator.h"
#include "net/job.h"

namespace gradwire::engine {

/// Timeouts of more than `kMaxTimeout` count as that.
inline Deadline after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min(timeout, kMaxTimeout);
}

/// What the caller's `Work` and the engine share.
struct WorkState {
  const HomeProcess home;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;                                         // guarded by mutex
  std::optional<Error> error;                                // guarded by mutex
  std::vector<std::function<void(const Error*)>> callbacks;  // guarded by mutex
  Statistics statistics;                                     // the engine's until done
  std::atomic<int> waiting{0};  // callers that do nothing else meanwhile
  Clock::time_point begun = Clock::now();

  void finish(std::optional<Error> failure);
};

/// A tensor with what does not change from piece to piece.
struct Item {
  TensorView view;
  Codec codec;                  // fitted to this rank's numbers
  std::vector<double> notes{};  // of the fitting
  Codec sums_codec;
  std::uint64_t name = 0;      // what random numbers know it by
  std::uint64_t turn = 0;      // see `EncodeOptions`
  std::size_t tensor = 0;      // of the call; parts of a tensor share it
  Residuals::Loan residual{};  // none: no feedback

  /// This rank's numbers.
  ConstTensorView input() const {
    if (residual == nullptr) return view;
    return {residual->numbers.data(), view.count, Dtype::f32};
  }
};

/// What to do, whatever the numbers are.
struct Routine {
  Routine(const Algorithm& algorithm, Collective collective, const Ranks& ranks, Rank me)
      : schedule(algorithm.make(collective, ranks, me)),
        lifetimes(lifetimes_of(schedule)),
        copies(algorithm.copies) {}
  const Schedule schedule;
  const Lifetimes lifetimes;
  const std::uint32_t copies;  // as in `Algorithm`
};

struct Operation {
  Collective collective = Collective::barrier;
  std::shared_ptr<const Routine> routine;
  std::vector<Item> items;
  std::vector<std::uint32_t> layers;  // by tensor: its name, a text of the recorder; none: no trace
  Layout layout{{}};
  Cut cut;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  float divisor = 1;  // of sums
  bool measure_error = false;
  Deadline deadline;
  std::size_t next_piece = 0;
  std::size_t finished_pieces = 0;
  std::shared_ptr<WorkState> work;

  /// Its end, good or bad. The same tensors may be used again at once.
  void finish(std::optional<Error> failure) {
    for (Item& item : items) {
      if (failure && item.residual != nullptr) item.residual->ends = false;
      item.residual.reset();
    }
    work->finish(std::move(failure));
  }
};

}  // namespace gradwire::engine
