// The ways that a tensor of some size may take, without those that another one beats.
//
// A way is an option of one device, a codec, and for each time when the codec encodes or decodes
// the device that does it: together all options of two devices. Of these only some are looked at:
// those where, for their time on the second device, most is taken off the first. Others are not
// best at any prices of the devices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/option.h"
#include "gradwire/codec.h"
#include "plan/chain.h"
#include "plan/costs.h"
#include "plan/load.h"

namespace gradwire {

/// What a tensor's way may be.
struct WayLimits {
  std::vector<Codec> codecs{};       ///< that may be taken; without any all is exact
  std::uint32_t most_encodings = 8;  ///< of a number, by codecs, on its way
  /// Squared error of a tensor, as a share of its squares: that of its codec (`codec_error`) for
  /// each time when its numbers are encoded. None: whatever it is.
  std::optional<double> most_error{};
  std::vector<Option> options{};  ///< of one device, one at least exact; none: all there are
};

/// One way for tensors of one size.
struct Candidate {
  std::uint32_t way = 0;         ///< of `Candidates`: option and codec
  std::uint32_t elsewhere = 0;   ///< by bits: encodings and decodings on the second device
  const Codec* codec = nullptr;  ///< none of exact ones
  std::uint32_t encodings = 0;
  std::uint32_t pieces = 1;
  std::size_t elements = 0;
  std::array<double, kResources> busy{};
  double seconds = 0;  ///< of its chain, if nobody else were there

  bool exact() const noexcept { return codec == nullptr; }
};

class Candidates {
 public:
  /// Throws as `Costs::codec` does. All arguments must outlive it.
  Candidates(const Cluster& cluster, const Costs& costs, const WayLimits& limits);

  /// Those that nobody beats, exact ones first, the fastest of each number of encodings first.
  const std::vector<Candidate>& front(std::size_t elements);

  /// All encodings and decodings on the second device; none if the codec has no times there, or if
  /// nothing is encoded.
  const Candidate* offloaded(const Candidate& candidate);

  /// Options of the first device with every codec they may have, also those that others beat.
  std::uint32_t ways() const noexcept { return static_cast<std::uint32_t>(ways_.size()); }
  bool is_exact(std::uint32_t way) const { return ways_[way].codec == 0; }
  Candidate uniform(std::uint32_t way, std::size_t elements) { return candidate(way, 0, elements); }

  /// Made when it is first asked for, and kept.
  const Chain& chain_of(const Candidate& candidate);
  Option option_of(const Candidate& candidate) const;

 private:
  struct Template {
    Option option;
    std::uint32_t encodings;
    std::vector<Load> loads;
    std::vector<std::uint16_t> kinds;  // of the loads, in `kinds_`
  };
  struct Way {
    std::uint32_t option;
    std::uint32_t codec;  // in `codecs_`
  };
  struct MeasuredWay {
    const Codec* codec;
    const MeasuredCodec* measured;
  };
  /// What one load does to resources.
  struct Demand {
    std::array<double, kResources> busy{};
    double duration = 0;  // of one piece
  };
  /// Of all kinds of loads, for a codec and a size.
  struct Demands {
    std::vector<Demand> own, other;
    double preparation = 0;
    double pieces = 1;
  };

  const Demands& demands(std::uint32_t codec, std::size_t elements);
  Candidate candidate(std::uint32_t way, std::uint32_t elsewhere, std::size_t elements);
  void add_placements(std::uint32_t way, std::size_t elements, std::vector<Candidate>& to);
  const std::vector<Candidate>& front_of_class(std::size_t elements);

  const Cluster cluster_;
  const Costs& costs_;
  const ChainMaker maker_;
  std::vector<Template> options_;
  std::vector<Load> kinds_;
  std::vector<MeasuredWay> codecs_;  // the first is exact
  std::vector<Way> ways_;
  std::map<std::pair<std::uint32_t, std::size_t>, Demands> demands_;  // by codec and elements
  std::map<int, std::vector<Candidate>> classes_;
  std::map<std::size_t, std::vector<Candidate>> fronts_;                  // by elements
  std::map<std::pair<std::uint32_t, std::size_t>, Candidate> offloaded_;  // by way and elements
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::size_t>, Chain> chains_;
};

}  // namespace gradwire
