// How a model's gradients travel when nobody says so: what its steps take decides.
//
// At first they travel exactly, and the ranks see how long computing and exchanging take, each
// alone and beside each other. From that the first rank proposes plans. They are tried in turns,
// and the one with the shortest steps stays: the exact one, unless another is shorter by more than
// noise. When steps become much longer or shorter later, all this begins again.
//
// Whatever decides is the same on all ranks: they meet for it at the begin of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "adapting.h"
#include "channel.h"
#include "gradwire/plan.h"
#include "plan/observation.h"
#include "plan/policies.h"
#include "plan/proposals.h"
#include "plan/trial.h"

namespace gradwire::pytorch {

struct AutoPlanOptions {
  std::vector<Layer> layers{};
  /// What does not depend on any choice. Its way is that of all other layers, where codecs are
  /// adapted and nothing else is chosen.
  DensePolicy fixed{};
  bool tries = true;  ///< plans, to find out which has the shortest steps
  /// Of all groups in which ranks exchange this model's gradients. The first has the ranks whose
  /// links count.
  std::vector<std::shared_ptr<Channel>> channels{};
  /// Whether exchanges may wait for the last gradients of a step. Without that nothing is foretold:
  /// the plans that are tried have one codec each.
  bool can_wait = true;
  /// Hears each choice, and what was done about odd numbers, in words.
  std::function<void(const std::string&)> on_choice{};
};

class AutoPlan {
 public:
  explicit AutoPlan(AutoPlanOptions options);

  /// Before anything of a step is exchanged. True: the plan has changed, from this step on. Waits
  /// for all ranks in some steps, and throws `Error` as exchanges do.
  bool begin_step(std::uint64_t step);
  /// Of all steps so far, as they went, and of those to come.
  const Plan& plan() const noexcept { return plan_; }

  /// This step's exchanges wait for its last gradients.
  bool waits() const noexcept { return seen_ == Seen::alone; }
  /// What `ready` and `see` are told of this step counts.
  bool observes() const noexcept { return seen_ == Seen::beside || seen_ == Seen::alone; }
  /// A layer's gradient is ready.
  void ready(std::string_view layer);
  /// Gradients that are about to be exchanged, as an example of what codecs will get.
  void see(const at::Tensor& gradients);
  /// Hears on any thread when sums come. Exchanges hold it, and through it nothing else: what they
  /// hold may end on the thread of their communicator.
  class Arrivals {
   public:
    void begin_step(std::chrono::steady_clock::time_point begin);
    /// The last gradients were handed over.
    void computed();
    /// Some sums have come.
    void came();
    /// Into what was seen of the step.
    void tell(StepTimes& times) const;

   private:
    double since_begin() const;

    mutable std::mutex mutex_;
    std::chrono::steady_clock::time_point begin_{};
    double processor_at_end_of_computing_ = 0;
    double computed_seconds_ = 0;
    double exchanged_seconds_ = 0;
    double processor_seconds_ = 0;
  };
  const std::shared_ptr<Arrivals>& arrivals() const noexcept { return arrivals_; }
  /// Whether a layer's way is chosen here: it may become lossy, if it is not.
  bool is_open(std::string_view layer) const;
  /// This step is none to judge by: it is exact because the program said so.
  void leave_out() noexcept { left_out_ = true; }

  /// What exchanges show of layers, for codecs to be adapted by; null: nothing is.
  std::shared_ptr<Sights> sights() const { return adapting_ ? adapting_->sights() : nullptr; }
  /// Whether exchanges also show what travels exactly.
  bool sees_exact() const { return adapting_ && adapting_->is_careful(); }

  /// What was chosen and why, in words; empty while nothing is.
  const std::string& outcome() const noexcept { return outcome_; }

  /// For a checkpoint: the plan's text once there is a choice, which a run that goes on from it
  /// takes, or nothing. What was saved of other layers, or for ranks on other
  /// hosts, is not taken.
  std::string saved() const;
  /// Beside it, what codecs are adapted by.
  struct SavedAdapting {
    std::string chosen{};  ///< the text of a plan without them
    std::string seen{};    ///< by this rank
    bool tried = true;     ///< whether plans were
  };
  SavedAdapting saved_adapting() const;
  /// For a comparison: what is saved and the same on all ranks.
  std::string compared() const;
  /// The step that comes is this one, as a checkpoint has it: what came after it is forgotten, and
  /// all begins again.
  void go_to(std::uint64_t step);
  void load(const std::string& saved, const SavedAdapting& adapting);

 private:
  using Clock = std::chrono::steady_clock;
  /// What a step is good for.
  enum class Seen : std::uint8_t { nothing, beside, alone, trial, choice, adapted };

  std::vector<adapt::AdaptedLayer> open_layers() const;
  void begin_again();
  bool is_lossy(const Plan& plan) const;
  /// What was chosen comes into force. True: something changes.
  bool take_next(std::uint64_t step);
  /// Hears of choices, and of odd numbers.
  void tell();
  void end_last_step(Clock::time_point now);
  void observe_again();
  void propose();
  std::vector<Proposal> proposed() const;
  std::string observed(double latency) const;
  double latency_seconds() const;
  void choose();
  void watch();
  /// Means over all ranks.
  void agree(std::vector<float>& numbers) const;

  const AutoPlanOptions options_;
  const bool exchanges_;  // there is somebody to exchange with, and something to choose
  std::unordered_map<std::string_view, std::size_t> places_;  // of layers
  const Plan exact_;
  Plan plan_;
  std::optional<Plan> next_;  // in force from the next step on, if that is another
  Plan chosen_;               // what is in force, but for codecs that are adapted
  std::unique_ptr<Adapting> adapting_;
  bool adapts_ = false;  // something in force is lossy
  Seen seen_ = Seen::nothing;
  unsigned steps_seen_ = 0;  // since this was last begun
  bool left_out_ = false;

  std::optional<Clock::time_point> begin_;  // of the step
  std::vector<double> ready_seconds_;       // in this step, by layer
  const std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  std::vector<StepTimes> beside_;
  std::vector<StepTimes> alone_;
  std::vector<float> example_;  // of gradients

  std::vector<Proposal> proposals_;
  std::optional<Trial> trial_;

  std::string outcome_;
  std::string news_;             // for `on_choice`
  double expected_seconds_ = 0;  // of a step; 0: not known yet
  std::vector<double> watched_;  // seconds of steps since the choice, or since last compared
  unsigned drifts_ = 0;          // in a row, each with its weight
  unsigned patience_ = 0;        // so many begin everything again
};

}  // namespace gradwire::pytorch
