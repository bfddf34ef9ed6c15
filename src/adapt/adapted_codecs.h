// How fine the layers of one model travel: what all ranks have seen in, codecs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapt/guard.h"
#include "adapt/tuner.h"
#include "gradwire/codec.h"

namespace gradwire::adapt {

struct AdaptedLayer {
  std::string name{};
  std::uint64_t elements = 0;
};

class AdaptedCodecs {
 public:
  /// `ranks` exchange gradients.
  AdaptedCodecs(std::span<const AdaptedLayer> layers, std::uint32_t ranks);

  /// What all ranks saw in one step, in the order of the layers, and the mean of the losses that
  /// they reported, if all have. The same on all ranks. True: codecs change.
  bool see(std::vector<Sight> step, std::optional<double> loss);

  /// In the place of a codec that leaves it open how fine it is: `grid` with the layer's step, or
  /// `none` where only exact numbers will do. Others are themselves.
  Codec adapted(std::size_t layer, const Codec& codec) const;
  /// Whether the guard has some layer travel finer or exactly for now.
  bool is_careful() const;
  /// Why a layer's codec is what it is, in words.
  std::string reason(std::size_t layer) const;

  /// What the guard did since this was last asked, in words.
  std::vector<std::string> take_events() { return guard_.take_events(); }

  /// All that later codecs depend on, for a run that goes on from a checkpoint. `load` is false for
  /// the bytes of other layers or ranks, and then changes nothing.
  std::vector<std::byte> save() const;
  bool load(std::span<const std::byte> saved);

 private:
  Tuner tuner_;
  Guard guard_;
};

}  // namespace gradwire::adapt
