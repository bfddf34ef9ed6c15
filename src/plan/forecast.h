// Predicts a step of training: when every tensor's exchange ends, and with them the step.
//
// Tensors are ready one after the other. Each then passes its chain of tasks, and every resource
// serves one task at a time, in the order in which they come. Where codecs share a device with the
// computing of gradients, that is a task of it like any other.
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

class Forecast {
 public:
  /// `shares_compute`: codecs and gradients take turns on one device.
  Forecast(const Workload& workload, bool shares_compute);

  /// Chains of all tensors, which must outlive the forecast.
  void set(std::span<const Chain* const> chains);
  /// Of one tensor.
  void set(std::size_t tensor, const Chain& chain);
  /// The seconds of a step if one tensor had another chain; or, once that is seen to be at least
  /// `limit`, some number that is, too.
  double with(std::size_t tensor, const Chain& chain,
              double limit = std::numeric_limits<double>::infinity()) const;

  double step_seconds() const noexcept { return step_seconds_; }
  /// Seconds of a step in which nothing is computed.
  double exposed_seconds() const noexcept { return step_seconds_ - end_of_step(computed_, 0); }
  /// Whether nothing is under way when a later tensor becomes ready: to shorten this one's exchange
  /// would only widen that gap.
  bool before_bubble(std::size_t tensor) const noexcept { return tensor < bubble_; }

 private:
  static constexpr std::size_t kMarks = 8;  // tensors from one state that is remembered to the next
  static constexpr std::uint32_t kComputing = ~std::uint32_t{0};

  struct Waiting {
    std::uint32_t tensor;  // or kComputing
    std::uint32_t task;
    double seconds;
  };
  /// Serves one task after the other.
  struct Server {
    std::vector<Waiting> queue{};  // the first is being served
    std::size_t first = 0;
    double done = 0;  // with it

    bool idle() const noexcept { return first == queue.size(); }
  };
  struct State {
    std::array<Server, kResources> servers{};
    std::vector<std::uint16_t> beside{};  // by tensor: tasks under way
    std::size_t next = 0;                 // tensor that is computed
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

  double end_of_step(double computed, double exchanged) const noexcept;
  void simulate_from(std::size_t tensor);

  const Workload& workload_;
  const bool shares_compute_;
  std::vector<const Chain*> chains_;
  std::vector<State> states_;  // when every kMarks-th tensor is computed
  std::vector<Mark> marks_;
  std::vector<double> ends_;       // of each tensor's exchange
  std::vector<double> ends_from_;  // the last one, from each tensor on
  double step_seconds_ = 0;
  double computed_ = 0;
  std::size_t bubble_ = 0;
};

}  // namespace gradwire
