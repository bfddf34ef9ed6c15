#include "plan/trial.h"

#include <algorithm>
#include <utility>

#include "base/sampling.h"

namespace gradwire {

Trial::Trial(std::size_t plans, const Rules& rules)
    : rules_(rules), seconds_(plans), judged_(plans), given_up_(plans), over_(plans == 1) {
  begin_round();
}

std::vector<std::size_t> Trial::tried() const {
  std::vector<std::size_t> plans;
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    if (!given_up_[i]) plans.push_back(i);
  }
  return plans;
}

void Trial::know(std::size_t plan, std::vector<double> seconds) {
  seconds_[plan] = std::move(seconds);
  std::erase(turns_, plan);
}

void Trial::begin_round() {
  turns_ = tried();
  // There and back: what becomes slower and slower does so for all plans alike.
  if (round_ % 2 == 1) std::ranges::reverse(turns_);
  turn_ = 0;
  step_ = 0;
}

void Trial::add(double seconds) {
  if (step_ > 0) seconds_[plan()].push_back(seconds);
  if (++step_ < rules_.block_steps) return;
  step_ = 0;
  ++turn_;
}

std::vector<double> Trial::medians() const {
  std::vector<double> medians;
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    medians.push_back(given_up_[i] ? 0 : median_of(seconds_[i]));
  }
  return medians;
}

void Trial::judge(std::span<const double> medians) {
  const std::vector<std::size_t> plans = tried();
  for (const std::size_t plan : plans) judged_[plan] = medians[plan];
  double fastest = judged_[plans.front()];
  for (const std::size_t plan : plans) fastest = std::min(fastest, judged_[plan]);
  best_ = *std::ranges::find_if(
      plans, [&](std::size_t plan) { return judged_[plan] * (1 - rules_.noise) <= fastest; });
  for (const std::size_t plan : plans) {
    given_up_[plan] = judged_[plan] > rules_.hopeless * fastest;
  }
  ++round_;
  begin_round();
  over_ = round_ == rules_.rounds || turns_.size() == 1;
}

}  // namespace gradwire
