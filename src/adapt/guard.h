// Looks for what no training does by itself, and has layers travel finer, or exactly, until it is
// over.
//
//   not finite   a gradient of some rank: the layer travels exactly until it is finite
//   leap         gradients some thirty times as large as usual: finer, and means begin anew
//   noise        ranks agreed, and suddenly do not at all: finer
//   error        codecs usually lose a large share of what is sampled: finer
//   loss         what the program reported is not finite, or far above the usual: all layers travel
//                exactly for some steps
//
// As `Tuner`, it draws the same conclusions on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapt/tuner.h"
#include "base/byte_cursor.h"

namespace gradwire::adapt {

enum class Care : std::uint8_t {
  usual,
  finer,  ///< by `kFiner`; codecs without steps: exactly
  exact,
};

/// A step by this much smaller spends two bits more.
inline constexpr double kFiner = 4;
/// Steps for which a layer is finer, or all are exact, after what was the reason for it.
inline constexpr std::uint32_t kCareSteps = 8;

class Guard {
 public:
  /// `names` of the layers, for events.
  explicit Guard(std::vector<std::string> names);

  /// What all ranks saw in one step, beside what the tuner has seen before. What tells the tuner
  /// nothing is taken out of `step`. `loss`: the mean of what ranks reported, if all have. True:
  /// some care has changed.
  bool see(std::span<Sight> step, Tuner& tuner, std::optional<double> loss);

  std::size_t layers() const noexcept { return layers_.size(); }
  Care care(std::size_t layer) const;

  /// What happened since this was last asked, in words.
  std::vector<std::string> take_events() { return std::exchange(events_, {}); }

  void save(ByteWriter& to) const;
  bool load(ByteReader& from);

 private:
  struct Layer {
    bool finite = true;
    std::uint32_t finer_steps = 0;  // that are left
  };

  /// Why a layer needs finer steps; empty: it does not.
  static std::string worry(const Sight& sight, const Sight& usual, double ranks);
  void see_loss(std::optional<double> loss);

  std::vector<std::string> names_;
  std::vector<Layer> layers_;
  std::uint32_t exact_steps_ = 0;  // of all layers, that are left
  double usual_loss_ = 0;          // without its sign
  std::uint32_t losses_ = 0;       // seen, as far as they matter
  std::vector<std::string> events_;
};

}  // namespace gradwire::adapt
