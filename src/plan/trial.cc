#include "plan/trial.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradwire {

Trial::Trial(std::size_t plans, const Rules& rules)
    : rules_(rules), seconds_(plans), judged_(plans), given_up_(plans), over_(plans == 1) {
  begin_round();
}

void Trial::begin_round() {
  turns_.clear();
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    if (!given_up_[i]) turns_.push_back(i);
  }
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

std::vector<double> Trial::usual_seconds() const {
  std::vector<double> usual;
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    usual.push_back(given_up_[i] ? 0 : middle_mean(seconds_[i]));
  }
  return usual;
}

void Trial::judge(std::span<const double> seconds) {
  for (const std::size_t plan : turns_) judged_[plan] = seconds[plan];
  std::ranges::sort(turns_);
  double fastest = judged_[turns_.front()];
  for (const std::size_t plan : turns_) fastest = std::min(fastest, judged_[plan]);
  best_ = *std::ranges::find_if(
      turns_, [&](std::size_t plan) { return judged_[plan] * (1 - rules_.noise) <= fastest; });
  ++round_;
  for (const std::size_t plan : turns_) given_up_[plan] = judged_[plan] > limit() * fastest;
  begin_round();
  over_ = round_ >= rules_.most_rounds || turns_.size() == 1;
}

double Trial::limit() const noexcept {
  if (round_ < rules_.rounds) return rules_.hopeless;
  return 1 + rules_.close * std::sqrt(static_cast<double>(rules_.rounds) / round_);
}

double middle_mean(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  std::ranges::sort(seconds);
  const auto outside = static_cast<std::ptrdiff_t>(seconds.size() / 4);  // on either side
  const std::span middle(seconds.begin() + outside, seconds.end() - outside);
  return std::accumulate(middle.begin(), middle.end(), 0.0) / static_cast<double>(middle.size());
}

}  // namespace gradwire
