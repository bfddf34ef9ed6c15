#include "bench/allreduce_check.h"

#include <cmath>
#include <limits>

namespace gradwire::cli {
namespace {

/// What one encoding loses of x, as a share of its energy.
double loss_of(const Codec& codec, std::span<const float> x) {
  const ConstTensorView view{x.data(), x.size(), Dtype::f32};
  std::vector<std::byte> bytes(codec.max_encoded_bytes(x.size()));
  const Codec fitted = codec.fit(view);
  const Encoded encoded = fitted.encode(view, {}, bytes);
  std::vector<float> decoded(x.size());
  fitted.decode(std::span(bytes).first(encoded.bytes), Dtype::f32,
                {decoded.data(), decoded.size(), Dtype::f32});
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(double{decoded[i]} - x[i], 2);
    energy += double{x[i]} * x[i];
  }
  return energy > 0 ? error / energy : 0;
}

}  // namespace

AllreduceCheck::AllreduceCheck(std::uint32_t ranks, std::size_t period,
                               const std::function<void(std::uint32_t, std::span<float>)>& fill)
    : ranks_(ranks), first_(period), sums_(period), magnitudes_(period) {
  std::vector<float> x(period);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    fill(rank, x);
    if (rank == 0) first_ = x;
    for (std::size_t i = 0; i < period; ++i) {
      sums_[i] += x[i];
      magnitudes_[i] += std::fabs(x[i]);
    }
  }
}

double AllreduceCheck::nmse(std::span<const float> result) const {
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double sum = sums_[i % sums_.size()];
    error += (result[i] - sum) * (result[i] - sum);
    energy += sum * sum;
  }
  return energy > 0 ? error / energy : error;
}

bool AllreduceCheck::rounds_only(std::span<const float> result) const {
  const double unit = std::numeric_limits<float>::epsilon() / 2 * ranks_;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t at = i % sums_.size();
    if (!(std::fabs(result[i] - sums_[at]) <= unit * magnitudes_[at])) return false;
  }
  return true;
}

bool AllreduceCheck::holds(std::span<const float> result, const Codec& codec) const {
  if (ranks_ == 1 || codec.traits().lossless) return rounds_only(result);
  // Inputs are alike, so each loses as large a share as the first. Most algorithms encode twice; a
  // ring encodes the growing sum in every hop. Few numbers vary more.
  const double encodings = 1.5 + ranks_ / 2.0;
  const double chance = 1 + 20 / std::sqrt(static_cast<double>(result.size() + 1));
  return nmse(result) <= loss_of(codec, first_) * encodings * chance;
}

}  // namespace gradwire::cli
