#include "codec/grid_fit.h"

#include <cmath>

#include "codec/kernels/grid_blocks.h"

namespace gradwire::grid {
namespace {

using kernels::Quantization;

/// Steps outside of this range are not used: reciprocals and products would lose bits.
bool usable(float step) noexcept { return step > 0x1p-100f && step < 0x1p+100f; }

/// The octave of a mean square relative to the layer's.
int scale_of(double relative) noexcept {
  return std::clamp(std::ilogb(relative), kMinScale, kMaxScale);
}

}  // namespace

PayloadHeader scaling(const Settings& settings) noexcept {
  const double locality = settings.locality;
  const double base = static_cast<double>(settings.amount) * settings.rms * std::exp2(locality / 4);
  return {static_cast<float>(std::min(base, 3e38)), static_cast<float>(std::exp2(locality / 2))};
}

void choose_steps(const Steps& steps, const Settings& settings, std::size_t count,
                  Blocks& blocks) noexcept {
  const double mean_square = static_cast<double>(settings.rms) * settings.rms;
  const bool local = settings.locality > 0;
  for (std::size_t b = 0; b < block_count(count); ++b) {
    const double energy = blocks.energies[b];
    blocks.scales[b] = 0;
    if (energy == 0) {
      blocks.steps[b] = 0;
      continue;
    }
    const double relative = energy / (static_cast<double>(block_size(b, count)) * mean_square);
    if (local && std::isfinite(relative) && relative > 0) {
      blocks.scales[b] = static_cast<std::int8_t>(scale_of(relative));
    }
    const float step = steps.of(blocks.scales[b]);
    const bool fits = usable(step) && std::sqrt(energy) < 16000.0 * step;  // false for NaN
    blocks.steps[b] = fits ? step : NAN;
  }
}

namespace {

using Layer = std::span<const ConstTensorView>;

template <typename Function>
void for_each_chunk(Layer layer, const Function& function) noexcept {
  for (const ConstTensorView& x : layer) grid::for_each_chunk(x, function);
}

struct Energy {
  double sum = 0;
  std::size_t count = 0;  // of the numbers in finite blocks
  double mean_square() const noexcept { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

Energy measure(Layer layer, std::span<double> notes) noexcept {
  Energy total;
  for_each_chunk(layer, [&](std::size_t first, ConstTensorView chunk) {
    double unnoted[kChunkBlocks];
    double* const energies = notes.empty() ? unnoted : &notes[first / kBlock];
    kernels::block_energies(chunk, energies);
    double sum = 0;
    for (std::size_t b = 0; b < block_count(chunk.count); ++b) {
      if (std::isnan(energies[b])) continue;
      sum += energies[b];
      total.count += block_size(b, chunk.count);
    }
    total.sum += sum;
  });
  return total;
}

/// The normalized squared error that these settings, with a step, are expected to make.
double expected_nmse(const Settings& settings, Layer layer, double energy) noexcept {
  const Steps steps(scaling(settings));
  double error = 0;
  for_each_chunk(layer, [&](std::size_t first, ConstTensorView chunk) {
    Blocks blocks;
    double errors[kChunkBlocks];
    kernels::block_energies(chunk, blocks.energies);
    choose_steps(steps, settings, chunk.count, blocks);
    const Quantization how{blocks.steps, settings.rounding, 0, first};
    kernels::expected_errors(chunk, how, errors);
    for (std::size_t b = 0; b < block_count(chunk.count); ++b) error += errors[b];
  });
  return error / energy;
}

/// The step that makes the requested error: Newton's method on logarithms, with the slope between
/// the last two guesses. Ends when the error is right to 1 %.
float step_for_nmse(Settings settings, Layer layer, double energy) noexcept {
  const double target = settings.amount;
  double step = std::sqrt(12 * target);
  double previous_step = 0;
  double previous_nmse = 0;
  for (int round = 0; round < 16; ++round) {
    settings.amount = static_cast<float>(step);
    const double nmse = expected_nmse(settings, layer, energy);
    if (!(nmse > 0) || std::abs(nmse / target - 1) < 0.01) break;
    double slope = 2;
    if (previous_nmse > 0 && step != previous_step) {
      slope = std::clamp(std::log(nmse / previous_nmse) / std::log(step / previous_step), 0.3, 3.0);
    }
    previous_step = step;
    previous_nmse = nmse;
    const double change = std::clamp(std::pow(target / nmse, 1 / slope), 0.1, 10.0);
    step = std::clamp<double>(step * change, kMinStep, kMaxStep);
  }
  return static_cast<float>(std::clamp<double>(step, kMinStep, kMaxStep));
}

}  // namespace

Settings fitted(Settings settings, Layer layer, std::span<double> notes) noexcept {
  if (settings.rms > 0 && settings.target == Target::step && notes.empty()) return settings;
  const Energy energy = measure(layer, notes);
  if (settings.rms == 0) {
    const double rms = std::sqrt(energy.mean_square());
    settings.rms = static_cast<float>(std::clamp(rms, 1e-45, 3e38));
  }
  if (settings.target == Target::nmse) {
    const float any_step = 0.5f;  // for a layer of zeros
    settings.amount = energy.sum > 0 ? step_for_nmse(settings, layer, energy.sum) : any_step;
    settings.target = Target::step;
  }
  return settings;
}

}  // namespace gradwire::grid
