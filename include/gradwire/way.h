// How a tensor travels: one value, with the same text in every language.
//
//   none                                            exactly
//   grid:step=0.5                                   by this codec
//   sign+feedback                                   what it holds back is added in the next step
//   topk:density=0.001+feedback:momentum=0.9,reuse=5+route:sra
//
// A text is a codec's, then `+feedback` with its keys and `+route:` with an algorithm, each if it
// is wanted, in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gradwire/codec.h"

namespace gradwire {

/// What a codec held back is kept and added in the next all_reduce or reduce_scatter of this name:
/// error feedback, for biased codecs. What rounding to f16 or bf16 takes of the results is kept,
/// too. Numbers that are not all finite are sent as they are, and leave what is kept on this rank
/// as it was. When the tensor takes a way without feedback, what is kept is added as well, and
/// nothing is kept any more: of a tensor that becomes exact nothing is lost.
struct Feedback {
  /// Of momentum SGD: what is held back gains momentum as if it had been sent, so that the
  /// optimizer must not add any: momentum correction. From 0 to below 1.
  float momentum = 0;
  bool nesterov = false;  ///< with momentum: Nesterov's
  /// With momentum: sparse codecs end the momentum of the numbers that they send: momentum factor
  /// masking. On routes that add up exactly before a codec chooses, nobody knows then what will be
  /// sent, and momentum goes on. docs/adr/0009 tells what it costs.
  bool masking = false;
  /// A sparse codec is fitted to the numbers every so many operations, and sooner when it sends
  /// half or twice as many as it did at first.
  std::uint32_t reuse = 1;

  friend bool operator==(const Feedback&, const Feedback&) = default;
};

struct Way {
  Codec codec = Codec::parse("none");
  std::optional<Feedback> feedback{};
  /// The algorithm, such as "sra"; empty: the communicator's.
  std::string route{};

  /// Throws `Error(invalid_spec)` that says what would have been right.
  static Way parse(std::string_view text);

  /// `parse(text())` gives an equal way. The codec's keys are written out, of the rest those that
  /// differ from their defaults.
  std::string text() const;

  /// The same without the keys of the codec that have their defaults, for people: `sign+feedback`.
  std::string short_text() const;

  /// Throws `Error(invalid_spec)` for values that no text gives, such as a momentum of 1.
  void check() const;

  friend bool operator==(const Way&, const Way&) = default;
};

}  // namespace gradwire
