// What all ranks see of a model's gradients, step by step, and how fine these travel by it.
//
// What a step showed on each rank is averaged while the next one runs, and known before the one
// after that begins: a layer that needs more care has it from the second step on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "adapt/adapted_codecs.h"
#include "channel.h"
#include "gradwire/plan.h"

namespace gradwire::pytorch {

/// What exchanges of this rank showed in the step that runs. On any thread. Exchanges hold it, and
/// through it nothing else: what they hold may end on the thread of their communicator.
class Sights {
 public:
  explicit Sights(std::vector<adapt::AdaptedLayer> layers);

  /// Of a layer whose sums are divided by so much before they are the mean of `ranks`.
  void count(std::string_view layer, const TensorStatistics& statistics, double ranks,
             double divisor);
  void count_loss(double loss);

  /// What was counted since this was last asked: of each layer energy, mean energy, sampled energy
  /// and sampled error, then the sum of the losses and how many they are.
  std::vector<double> take();
  std::vector<double> counted() const;
  void set(std::vector<double> counted);

 private:
  const std::vector<adapt::AdaptedLayer> layers_;
  std::unordered_map<std::string_view, std::size_t> places_;
  mutable std::mutex mutex_;
  std::vector<double> numbers_;  // guarded by mutex_
};

class Adapting {
 public:
  /// The ranks of all channels exchange the gradients of these layers. The ranks of the first one
  /// add them up.
  Adapting(std::vector<adapt::AdaptedLayer> layers, std::vector<std::shared_ptr<Channel>> channels);
  const std::shared_ptr<Sights>& sights() const noexcept { return sights_; }

  /// Before anything of a step is exchanged, in the same steps on all ranks. True: codecs change.
  /// Throws `Error` as exchanges do.
  bool begin_step();
  /// Forgets what steps showed, but not what was concluded from it. What failed is forgotten, too.
  void forget_steps();
  /// Forgets that, too.
  void begin_again();

  /// The plan with finer or coarser codecs, and reasons, for those of its layers that are adapted.
  /// It has one stage for each layer. Of those that are exact by the plan, nothing counts.
  Plan adapted(Plan plan);
  /// Whether some layer that could be coarser travels finer or exactly for now. Of those that
  /// travel exactly nothing is seen unless that is asked for.
  bool is_careful() const { return codecs_.is_careful(); }

  /// What was done about odd numbers since this was last asked, in words.
  std::vector<std::string> take_events() { return codecs_.take_events(); }

  /// For a checkpoint: all that later steps depend on, of this rank. `load` changes nothing for
  /// what was saved of other layers or ranks.
  std::string saved();
  /// What was averaged and concluded, which is the same on all ranks, as a number.
  std::uint64_t hash();
  void load(std::string_view saved);

 private:
  /// The averages of the step before, if there are some.
  void await();
  /// True: codecs change by them.
  bool conclude();
  /// Waits as well, but what failed is none: who waits for gradients hears of it.
  void settle();
  /// Of what is saved, that which is the same on all ranks.
  std::vector<std::byte> shared();

  const std::vector<std::shared_ptr<Channel>> channels_;
  const std::vector<adapt::AdaptedLayer> layers_;
  const std::shared_ptr<Sights> sights_;
  std::vector<bool> lossy_;  // by layer: in the plan that was adapted last
  adapt::AdaptedCodecs codecs_;
  // Over the ranks, once `under_way_` is done, which has it, too: a model may go before that.
  std::shared_ptr<std::vector<float>> averages_;
  bool has_averages_ = false;
  std::optional<Work> under_way_;
};

}  // namespace gradwire::pytorch
