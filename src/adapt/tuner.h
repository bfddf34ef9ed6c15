// How fine `grid` is in every layer, found out from the gradients while they train.
//
// What an error costs is what is not learnt for it. A layer's gradient shows how much there is to
// learn: its consensus is the share of its energy in which the ranks agree, beyond what they do by
// chance. An error that is spread evenly over all layers costs least for its bytes (reverse
// water-filling), and more is worth spending while consensus is high: with bytes that fall by the
// logarithm of the distance d between points, and a cost in proportion to consensus * d^2, the sum
// of both over a training is least where d is in proportion to 1 / sqrt(consensus). So
//
//   d of a layer = 0.33 * mean rms of all layers * sqrt(0.1 / consensus of the layer)
//
// and `grid:step` is d by the layer's rms. The gradients of the first and the last layers are some
// hundred times those of wide ones, which hold nearly all bytes: they get finer steps for next to
// nothing. docs/adr/0018 has what was measured.
//
// All ranks see the same numbers and draw the same conclusions: they are made by additions,
// products, quotients and square roots alone, which are the same on all machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_cursor.h"

namespace gradwire::adapt {

/// What all ranks saw of a layer in one step. Energies are sums of squares.
struct Sight {
  double energy = 0;          ///< of a rank's gradient, the mean over ranks; 0: none travelled
  double mean_energy = 0;     ///< of the mean of the ranks' gradients, as it came
  double sampled_energy = 0;  ///< of what was measured of messages
  double sampled_error = 0;   ///< what codecs lost of that
};

/// The share of a gradient's energy that is no noise, as `ranks` see it: from 0 to 1. Of what
/// codecs add, which looks like agreement, it is cleared.
double consensus(const Sight& sight, double ranks) noexcept;

class Tuner {
 public:
  /// `elements` of each layer.
  Tuner(std::span<const std::uint64_t> elements, std::uint32_t ranks);

  /// In the order of the layers. Layers that did not travel, or whose energies are not finite, show
  /// nothing. True: some step has changed.
  bool see(std::span<const Sight> step);
  /// What was seen of a layer so far tells nothing any more.
  void forget(std::size_t layer);

  /// `grid:step` of a layer from now on. A few values only, so that ways change now and then.
  double step_of(std::size_t layer) const { return kSteps[layers_[layer].rung]; }
  double ranks() const noexcept { return ranks_; }
  /// The running means of what was seen of a layer; all 0: nothing yet.
  const Sight& usual(std::size_t layer) const noexcept { return layers_[layer].usual; }

  /// All that later steps depend on, and back: false for the bytes of other layers or ranks.
  void save(ByteWriter& to) const;
  bool load(ByteReader& from);

  /// What steps there are.
  static std::span<const double> steps() noexcept { return kSteps; }

 private:
  // Ratios of about 2^(1/4), of which a pair is hardly told apart by its training.
  static constexpr double kSteps[] = {0.02, 0.024, 0.028, 0.034, 0.04, 0.048, 0.056, 0.067,
                                      0.08, 0.095, 0.11,  0.13,  0.16, 0.19,  0.22,  0.26,
                                      0.31, 0.37,  0.44,  0.53,  0.63, 0.75,  0.88,  1.0};

  struct Layer {
    std::uint64_t elements = 0;
    std::uint64_t seen = 0;  // steps
    Sight usual{};
    std::size_t rung = 0;  // of `kSteps`
  };

  static void add(Layer& layer, const Sight& sight);
  static double rms_of(const Layer& layer) noexcept;
  double mean_rms() const noexcept;
  double wanted_step(const Layer& layer, double mean_rms) const noexcept;

  double ranks_;
  std::vector<Layer> layers_;
};

}  // namespace gradwire::adapt
