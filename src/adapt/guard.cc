#include "adapt/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gradwire::adapt {
namespace {

// Ratios of energies.
constexpr double kLeap = 1000;
constexpr double kMostError = 0.25;
// Consensus: of layers that have as much, and what is left of it.
constexpr double kStrong = 0.3;
constexpr double kLost = 0.05;
constexpr double kLossLeap = 3;
constexpr std::uint32_t kLossWindow = 16;
constexpr std::uint32_t kLeastLosses = 8;

bool is_finite(const Sight& sight) {
  return std::isfinite(sight.energy) && std::isfinite(sight.mean_energy);
}

bool leaps(const Sight& sight, const Sight& usual) {
  return usual.energy > 0 && sight.energy > kLeap * usual.energy;
}

}  // namespace

Guard::Guard(std::vector<std::string> names) : names_(std::move(names)), layers_(names_.size()) {}

bool Guard::see(std::span<Sight> step, Tuner& tuner, std::optional<double> loss) {
  std::vector<Care> before;
  for (std::size_t i = 0; i < layers_.size(); ++i) before.push_back(care(i));
  see_loss(loss);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.finer_steps > 0) --layer.finer_steps;
    if (step[i].energy == 0) continue;  // nothing was seen of it
    const bool finite = is_finite(step[i]);
    if (layer.finite != finite) {
      events_.push_back(names_[i] + (finite ? ": finite again" : ": not finite, travels exactly"));
    }
    layer.finite = finite;
    if (!finite) continue;
    const std::string worry = Guard::worry(step[i], tuner.usual(i), tuner.ranks());
    if (worry.empty()) continue;
    if (layer.finer_steps == 0) {
      events_.push_back(
          fmt::format("{}: {}, travels finer for {} steps", names_[i], worry, kCareSteps));
    }
    layer.finer_steps = kCareSteps;
    if (!leaps(step[i], tuner.usual(i))) continue;
    tuner.forget(i);  // it may stay so, or be as before
    step[i] = {};
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (care(i) != before[i]) return true;
  }
  return false;
}

std::string Guard::worry(const Sight& sight, const Sight& usual, double ranks) {
  if (usual.energy == 0) return {};
  // Not of this step's sample alone: a message of few small numbers loses more than its layer does.
  if (usual.sampled_error > kMostError * usual.sampled_energy) {
    return fmt::format("codecs lost {:.0f} % of its energy",
                       100 * usual.sampled_error / usual.sampled_energy);
  }
  if (leaps(sight, usual)) {
    return fmt::format("gradients {:.0f} times as large as usual",
                       std::sqrt(sight.energy / usual.energy));
  }
  const double had = consensus(usual, ranks);
  if (had >= kStrong && consensus(sight, ranks) < kLost) {
    return fmt::format("ranks agree no longer (consensus {:.2f} of {:.2f})",
                       consensus(sight, ranks), had);
  }
  return {};
}

void Guard::see_loss(std::optional<double> loss) {
  if (exact_steps_ > 0) --exact_steps_;
  if (!loss) return;
  const bool leaps = losses_ >= kLeastLosses && usual_loss_ > 0 && *loss > kLossLeap * usual_loss_;
  if (!std::isfinite(*loss) || leaps) {
    if (exact_steps_ == 0) {
      events_.push_back(
          fmt::format("the loss is {:.4g} after {:.4g}: all layers travel exactly for "
                      "{} steps",
                      *loss, usual_loss_, kCareSteps));
    }
    exact_steps_ = kCareSteps;
    losses_ = 0;  // it may stay there
    return;
  }
  losses_ = std::min(losses_ + 1, kLossWindow);
  usual_loss_ += (std::abs(*loss) - usual_loss_) / losses_;
}

Care Guard::care(std::size_t layer) const {
  if (exact_steps_ > 0 || !layers_[layer].finite) return Care::exact;
  return layers_[layer].finer_steps > 0 ? Care::finer : Care::usual;
}

void Guard::save(ByteWriter& to) const {
  for (const Layer& layer : layers_) {
    to.write(layer.finite);
    to.write(layer.finer_steps);
  }
  to.write(exact_steps_);
  to.write(usual_loss_);
  to.write(losses_);
}

bool Guard::load(ByteReader& from) {
  std::vector<Layer> layers(layers_.size());
  for (Layer& layer : layers) {
    std::uint8_t finite = 1;
    if (!from.read(finite) || !from.read(layer.finer_steps)) return false;
    if (layer.finer_steps > kCareSteps) return false;
    layer.finite = finite != 0;
  }
  std::uint32_t exact_steps = 0, losses = 0;
  double usual_loss = 0;
  if (!from.read(exact_steps) || !from.read(usual_loss) || !from.read(losses)) return false;
  if (exact_steps > kCareSteps || losses > kLossWindow || !std::isfinite(usual_loss)) return false;
  layers_ = std::move(layers);
  exact_steps_ = exact_steps;
  usual_loss_ = usual_loss;
  losses_ = losses;
  return true;
}

}  // namespace gradwire::adapt
