#include "adapt/tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::adapt {
namespace {

/// Of a layer with the usual consensus and the mean rms.
constexpr double kStep = 0.33;
constexpr double kUsualConsensus = 0.1;
/// Less is taken for it: that much is what chance makes of small layers.
constexpr double kLeastConsensus = 0.03;
/// A step stays while what is wanted is within this ratio of it, so that chance changes nothing.
constexpr double kStays = 1.3;
/// Steps of training that a running mean stands for: few at first, as gradients change fast.
constexpr std::uint64_t kLeastWindow = 4;
constexpr std::uint64_t kMostWindow = 64;
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 62U;

bool shows_something(const Sight& sight) noexcept {
  return std::isfinite(sight.energy) && std::isfinite(sight.mean_energy) && sight.energy > 0;
}

/// The nearest of the steps, by ratio.
std::size_t rung_of(double step) noexcept {
  const std::span<const double> steps = Tuner::steps();
  std::size_t rung = 0;
  while (rung + 1 < steps.size() && step * step >= steps[rung] * steps[rung + 1]) ++rung;
  return rung;
}

}  // namespace

double consensus(const Sight& sight, double ranks) noexcept {
  if (ranks < 2) return 1;
  // Of numbers that were encoded, a mean has the errors of all ranks but one, each by itself.
  const double lost = sight.sampled_energy > 0 ? sight.sampled_error / sight.sampled_energy : 0;
  const double agreement = sight.energy > 0 ? sight.mean_energy / sight.energy : 0;
  const double found = (ranks * agreement - 1) / (ranks - 1) - lost / ranks;
  return std::clamp(found, 0.0, 1.0);
}

Tuner::Tuner(std::span<const std::uint64_t> elements, std::uint32_t ranks) : ranks_(ranks) {
  const std::size_t first = rung_of(kStep * std::sqrt(kUsualConsensus));  // all may agree
  for (const std::uint64_t count : elements) layers_.push_back({.elements = count, .rung = first});
}

bool Tuner::see(std::span<const Sight> step) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (shows_something(step[i])) add(layers_[i], step[i]);
  }
  const double rms = mean_rms();
  bool changed = false;
  for (Layer& layer : layers_) {
    if (layer.seen == 0) continue;
    const double wanted = wanted_step(layer, rms);
    const double now = kSteps[layer.rung];
    if (wanted <= now * kStays && wanted * kStays >= now) continue;
    const std::size_t rung = rung_of(wanted);
    changed = changed || rung != layer.rung;
    layer.rung = rung;
  }
  return changed;
}

void Tuner::add(Layer& layer, const Sight& sight) {
  ++layer.seen;
  const std::uint64_t window =
      std::min(layer.seen, std::clamp(layer.seen / 4, kLeastWindow, kMostWindow));
  const auto blend = [&](double& mean, double seen) {
    mean += (seen - mean) / static_cast<double>(window);
  };
  blend(layer.usual.energy, sight.energy);
  blend(layer.usual.mean_energy, sight.mean_energy);
  if (!(sight.sampled_energy > 0) || !std::isfinite(sight.sampled_error)) return;
  blend(layer.usual.sampled_energy, sight.sampled_energy);
  blend(layer.usual.sampled_error, sight.sampled_error);
}

void Tuner::save(ByteWriter& to) const {
  to.write(ranks_);
  for (const Layer& layer : layers_) to.write(layer);
}

bool Tuner::load(ByteReader& from) {
  std::vector<Layer> loaded(layers_.size());
  double ranks = 0;
  if (!from.read(ranks) || ranks != ranks_ || !from.read_all(std::span(loaded))) return false;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const Layer& layer = loaded[i];
    const Sight& usual = layer.usual;
    if (layer.elements != layers_[i].elements || layer.rung >= steps().size()) return false;
    if (layer.seen > kMostSteps) return false;
    for (const double mean :
         {usual.energy, usual.mean_energy, usual.sampled_energy, usual.sampled_error}) {
      if (!(mean >= 0) || !std::isfinite(mean)) return false;
    }
  }
  layers_ = std::move(loaded);
  return true;
}

void Tuner::forget(std::size_t layer) {
  layers_[layer].seen = 0;
  layers_[layer].usual = {};
}

double Tuner::rms_of(const Layer& layer) noexcept {
  return std::sqrt(layer.usual.energy / static_cast<double>(layer.elements));
}

double Tuner::mean_rms() const noexcept {
  double sum = 0, elements = 0;
  for (const Layer& layer : layers_) {
    if (layer.seen == 0) continue;
    sum += static_cast<double>(layer.elements) * rms_of(layer);
    elements += static_cast<double>(layer.elements);
  }
  return elements > 0 ? sum / elements : 0;
}

double Tuner::wanted_step(const Layer& layer, double mean_rms) const noexcept {
  const double found = std::max(kLeastConsensus, consensus(layer.usual, ranks_));
  return kStep * std::sqrt(kUsualConsensus / found) * mean_rms / rms_of(layer);
}

}  // namespace gradwire::adapt
