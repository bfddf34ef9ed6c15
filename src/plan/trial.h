// Finds out which of some plans has the shortest steps, by trying them in a job that trains.
//
// Plans take turns, a block of steps each, in several rounds, so that a machine or a network that
// is busy for a while is so for all of them. After every round the ranks compare what they
// measured; a plan that is far behind is not tried again. Those that are close have more rounds:
// the longer plans are tried, the smaller a difference tells them apart.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gradwire {

class Trial {
 public:
  struct Rules {
    /// Steps of a block. The first is not counted: it ends what the plan before it began. Of the
    /// others there are as many of each kind in all blocks, where every second, third or fourth
    /// step is longer.
    unsigned block_steps = 13;
    /// Of all plans but those whose steps take so many times those of the best.
    unsigned rounds = 2;
    double hopeless = 2;
    /// Of those that are then behind the best by less than this share of a step. After more rounds
    /// it is less, as the noise of a mean is: by the square root of their number.
    unsigned most_rounds = 6;
    double close = 0.1;
    /// A later plan must beat an earlier one by this share of a step: less is noise.
    double noise = 0.02;
  };

  /// Of at least one plan. Where two are equal, the earlier one wins.
  Trial(std::size_t plans, const Rules& rules);
  explicit Trial(std::size_t plans) : Trial(plans, Rules{}) {}

  /// The plan of the step that begins.
  std::size_t plan() const noexcept { return turns_[turn_]; }
  /// It took so long on this rank.
  void add(double seconds);
  /// All plans have had their turn: `judge` comes next.
  bool round_is_over() const noexcept { return turn_ == turns_.size(); }
  /// What this rank's steps take, by plan: of those that are still tried. Others have 0.
  std::vector<double> usual_seconds() const;
  /// The same of all ranks, by which all judge alike. Ends the round.
  void judge(std::span<const double> seconds);

  bool is_over() const noexcept { return over_; }
  /// The one to stay with, by the last judgement.
  std::size_t best() const noexcept { return best_; }
  /// Of a plan, by the last judgement in which it was still tried.
  double step_seconds(std::size_t plan) const noexcept { return judged_[plan]; }

 private:
  void begin_round();
  /// Behind the best by more than this, as a multiple of its step, a plan is given up.
  double limit() const noexcept;

  const Rules rules_;
  std::vector<std::vector<double>> seconds_;  // by plan
  std::vector<double> judged_;                // by plan
  std::vector<bool> given_up_;                // by plan
  std::vector<std::size_t> turns_;            // plans of this round, in their order
  std::size_t turn_ = 0;
  unsigned step_ = 0;   // of the block
  unsigned round_ = 0;  // rounds that have been judged
  bool over_ = false;
  std::size_t best_ = 0;
};

/// The mean of the middle half: single steps that are much longer do not count, and kinds of steps
/// that take turns do. 0 of none.
double middle_mean(std::vector<double> seconds);

}  // namespace gradwire
