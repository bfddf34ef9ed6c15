// What an all-reduce of known inputs must give, and whether it did.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradwire/codec.h"

namespace gradwire::cli {

/// Inputs may repeat: element i of every rank's tensor is element i % period of what is given here.
class AllreduceCheck {
 public:
  /// `fill(rank, x)` writes the first `period` elements of a rank's input.
  AllreduceCheck(std::uint32_t ranks, std::size_t period,
                 const std::function<void(std::uint32_t, std::span<float>)>& fill);

  /// The share of the sum's energy that the result lacks.
  double nmse(std::span<const float> result) const;

  /// Whether the result is what `codec` may give: within the rounding of fp32 if it loses nothing,
  /// else within what it loses of one rank's input, once for every time that sums are encoded.
  bool holds(std::span<const float> result, const Codec& codec) const;

 private:
  bool rounds_only(std::span<const float> result) const;

  std::uint32_t ranks_;
  std::vector<float> first_;  // rank 0's input
  std::vector<double> sums_;
  std::vector<double> magnitudes_;  // sums of absolute values
};

}  // namespace gradwire::cli
