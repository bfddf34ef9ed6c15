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

#include "base/clock.h"
#include "base/fork.h"
#include "engine/recipe.h"
#include "engine/spending.h"
#include "feedback/residuals.h"
#include "gradwire/communicator.h"
#include "net/job.h"
#include "tensor/arithmetic.h"

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

/// A tensor of the call: one item, or in reduce_scatter and all_gather one for each rank.
struct Source {
  Codec codec;  // after its preparation: fitted to this rank's numbers
  Codec sums_codec;
  std::vector<double> notes{};      // of the fitting
  std::uint64_t turn = 0;           // see `EncodeOptions`
  std::vector<TensorView> input{};  // the caller's numbers that this rank contributes
  Feedback feedback{};
  Residuals::Loan loan{};  // none: nothing was kept, and nothing will be
  bool finite = true;      // as far as it was measured
  bool lossy = false;      // its codec is
  bool counted = false;    // its energies are
  bool prepared = false;   // its pieces may begin

  /// Where numbers are kept; null for numbers that must not be: what is not finite is sent as it
  /// is, and leaves what was kept as it was.
  Residual* residual() const { return finite ? loan.get() : nullptr; }
};

/// Numbers that lie in one place, with what does not change from piece to piece.
struct Item {
  TensorView view;         // the caller's: output, and without feedback input
  std::size_t source = 0;  // of the operation
  std::size_t first = 0;   // of its numbers in the source
  std::uint64_t name = 0;  // what random numbers know it by
};

struct Operation {
  Collective collective = Collective::barrier;
  std::shared_ptr<const Recipe> recipe;
  std::vector<Source> sources;
  std::vector<Item> items;
  std::vector<std::uint32_t> layers;  // by source: its name, a text of the recorder; none: no trace
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint16_t call = 0;      // a hash of what all ranks' calls have in common; 0 of barriers
  float divisor = 1;           // of sums
  bool measure_error = false;  // of all messages, and not of a sample
  bool counts = false;         // energies of a source
  bool samples = false;        // messages of a source
  bool keeps = false;          // something: a source has feedback, or errors are measured
  std::uint64_t turn = 0;      // of those that choose the sample
  Deadline deadline;
  std::size_t unprepared = 0;   // sources
  std::size_t next_source = 0;  // that is to be prepared
  std::size_t next_piece = 0;
  std::size_t finished_pieces = 0;
  Spending spending;
  std::shared_ptr<WorkState> work;

  /// This rank's numbers of an item, as they are exchanged.
  ConstTensorView input(const Item& item) const {
    const Residual* residual = sources[item.source].residual();
    if (residual == nullptr) return item.view;
    return {residual->numbers.data() + item.first, item.view.count, Dtype::f32};
  }

  /// Whether all that a piece needs is prepared.
  bool ready(const Piece& piece) const {
    return unprepared == 0 || std::ranges::all_of(piece.sections, [&](const Section& section) {
             return std::ranges::all_of(recipe->lines[section.line].items, [&](std::uint32_t item) {
               return sources[items[item].source].prepared;
             });
           });
  }

  /// Its end, good or bad. The same tensors may be used again at once.
  void finish(std::optional<Error> failure) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      Source& source = sources[i];
      if (source.loan == nullptr) continue;
      if (failure || !source.finite) source.loan->ends = false;
      if (!failure && !source.finite) {  // no step has looked at what is kept
        const auto& kept = source.loan->numbers;
        work->statistics.tensors[i].residual_energy =
            kernels::quick_energy({kept.data(), kept.size()});
      }
      source.loan.reset();
    }
    work->finish(std::move(failure));
  }
};

}  // namespace gradwire::engine
