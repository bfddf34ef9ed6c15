// Predicts a step of training: when every tensor's exchange ends, and with them the step.
//
// Tensors are ready one after the other. Each then passes its chain of tasks, piece after piece,
// and every resource serves one task at a time, in the order in which they come. Where codecs share
// a processor with the computing of gradients, that goes on whenever they leave it alone, as the
// system wakes up whoever waited for a message. Where they do not, it goes on more slowly beside
// exchanges.
//
// To try another chain of one tensor, time goes on from that tensor, until all is as it was: when
// nothing is under way in either case.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/chain.h"
#include "plan/workload.h"

namespace gradwire {

/// What computing and exchanging do to one another.
struct Sharing {
  bool one_device = false;  ///< codecs and gradients take turns
  double interference = 1;  ///< otherwise: computing beside exchanges, as a multiple of it alone
};

/// Something that was done for a tensor, or the computing of its gradient.
struct Interval {
  enum class Kind : std::uint8_t { computing, preparing, task };
  Kind kind;
  std::size_t tensor;
  std::uint32_t piece;
  Resource resource;  ///< of computing: `codec`, also where that has a device of its own
  std::size_t task;   ///< of the chain
  double begin;       ///< seconds after backward has begun
  double end;
};

class Forecast {
 public:
  Forecast(const Workload& workload, const Sharing& sharing);

  /// Chains of all tensors, which must outlive the forecast.
  void set(std::span<const Chain* const> chains);
  /// Of one tensor.
  void set(std::size_t tensor, const Chain& chain);
  /// The seconds of a step if one tensor had another chain; or, once that is seen to be at least
  /// `limit`, some number that is, too.
  /// By one thread at a time.
  double with(std::size_t tensor, const Chain& chain,
              double limit = std::numeric_limits<double>::infinity()) const;

  double step_seconds() const noexcept { return step_seconds_; }
  /// Seconds of a step in which nothing is computed.
  double exposed_seconds() const noexcept { return step_seconds_ - end_of_step(computed_, 0); }
  /// Whether nothing is under way when a later tensor becomes ready: to shorten this one's exchange
  /// would only widen that gap.
  bool before_bubble(std::size_t tensor) const noexcept { return tensor < bubble_; }
  /// When each tensor's exchange ends, after backward has begun.
  double end_of(std::size_t tensor) const noexcept { return ends_[tensor]; }

  /// Tasks that were walked so far, for whoever wants to stop at some effort.
  std::uint64_t tasks_walked() const noexcept { return tasks_walked_; }

  /// All that is done, in the order in which it ends.
  std::vector<Interval> timeline() const;

 private:
  static constexpr std::size_t kMarks = 8;  // tensors from one state that is remembered to the next

  struct Waiting {
    const Task* task;  // or none: the tensor is prepared
    const Task* end;   // of the chain
    double seconds;
    std::uint32_t tensor;
    std::uint32_t piece;
  };
  /// Serves one task after the other.
  struct Server {
    std::vector<Waiting> queue{};  // the first is being served
    std::size_t first = 0;

    bool idle() const noexcept { return first == queue.size(); }
    void forget_done() {
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(first));
      first = 0;
    }
  };
  static constexpr std::size_t kReady = kResources;
  struct State {
    std::array<Server, kResources> servers{};
    /// When each server's task is done, and the next tensor computed. Infinite: not before
    /// something else is.
    std::array<double, kResources + 1> next_at{};
    /// By tensor and piece: tasks under way.
    std::vector<std::array<std::uint8_t, Chain::kMostPieces>> beside{};
    std::vector<std::uint8_t> pieces_left{};  // by tensor, of those that have begun
    std::size_t next = 0;                     // tensor that is computed
    double computing_left = 0;                // seconds of it, at `computing_since`
    double computing_since = 0;
    double time = 0;
    double computed = 0;                    // when the last gradient was
    double end = 0;                         // of the last exchange
    std::size_t under_way = 0;              // tensors
    std::array<double, kResources> left{};  // work of all tensors that is not done
  };
  /// What was when a tensor became ready.
  struct Mark {
    double time = 0;
    bool idle = false;
    std::array<double, kResources> left{};  // as in `State`, but of tasks under way only the rest
  };

  class Run;
  static Mark mark_of(const State& state);
  State first_state() const;

  double end_of_step(double computed, double exchanged) const noexcept;
  /// Whoever computes and encodes does this much more when a tensor becomes ready.
  double computing_after(std::size_t tensor) const noexcept;
  double least_step(const State& state) const noexcept;
  void simulate_from(std::size_t tensor);

  const Workload& workload_;
  const Sharing sharing_;
  std::vector<const Chain*> chains_;
  std::vector<State> states_;  // when every kMarks-th tensor is computed
  std::vector<Mark> marks_;
  std::vector<double> ends_;       // of each tensor's exchange
  std::vector<double> ends_from_;  // the last one, from each tensor on
  mutable State trial_;            // kept for its memory
  mutable std::uint64_t tasks_walked_ = 0;
  double step_seconds_ = 0;
  double computed_ = 0;
  std::size_t bubble_ = 0;
};

}  // namespace gradwire
