#include "codec/threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

using kernels::Floors;
using kernels::kLargestFiniteKey;
using kernels::Side;

using Layer = std::span<const ConstTensorView>;

/// What all selections look at.
struct Task {
  Layer layer;
  Side side;
  std::uint64_t wanted;
};

template <typename Function>
void for_each_step(Layer layer, const Function& function) noexcept {
  for (const ConstTensorView& x : layer) {
    for (std::size_t first = 0; first < x.count; first += kernels::kSiftElements) {
      function(x.slice(first, std::min(kernels::kSiftElements, x.count - first)));
    }
  }
}

constexpr Threshold above(std::uint32_t key) noexcept { return {key, 0}; }

// ---------------------------------------------------------------------------------------------
// Histograms

/// The keys above `low`, up to and with `high`.
struct Bracket {
  std::uint32_t low;
  std::uint32_t high;

  bool operator==(const Bracket&) const = default;
};

constexpr Bracket kAllFinite{0, kLargestFiniteKey};

/// How many keys there are in each part of a bracket, and above it.
class Histogram {
 public:
  Histogram(const Task& task, Bracket bracket) noexcept : low_(bracket.low), high_(bracket.high) {
    while ((high_ - low_ - 1) >> shift_ >= kBins) ++shift_;
    for_each_step(task.layer, [&](ConstTensorView x) {
      kernels::Sifted found;
      kernels::sift(x, task.side, low_, found);
      for (std::size_t i = 0; i < found.count; ++i) {
        const std::uint32_t key = kernels::key_of(found.values[i], task.side);
        ++counts_[key > high_ ? kBins : (key - low_ - 1) >> shift_];
      }
    });
  }

  std::uint64_t above() const noexcept { return counts_[kBins]; }
  bool is_empty() const noexcept { return !find(above() + 1); }  // the bracket
  bool is_fine() const noexcept { return shift_ == 0; }          // a bin is a key

  struct Bin {
    Bracket keys;
    std::uint64_t count;
    std::uint64_t above;  // of its keys
  };

  /// The bin with the `rank`-th largest key; nothing when that is above or below the bracket.
  std::optional<Bin> find(std::uint64_t rank) const noexcept {
    std::uint64_t passed = above();
    if (passed >= rank) return std::nullopt;
    for (std::uint32_t b = kBins; b-- > 0;) {
      if (passed + counts_[b] >= rank) {
        const std::uint32_t low = low_ + (b << shift_);
        return Bin{{low, std::min(low + (1u << shift_), high_)}, counts_[b], passed};
      }
      passed += counts_[b];
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t kBins = 4096;

  std::uint32_t low_;
  std::uint32_t high_;
  int shift_ = 0;
  std::uint64_t counts_[kBins + 1] = {};
};

/// The threshold, when as many as `wrong` elements too many or too few do not matter. Most of the
/// time the bracket has it; else it is looked for everywhere.
Threshold refine(const Task& task, Bracket bracket, std::uint64_t wrong) noexcept {
  while (true) {
    const Histogram histogram(task, bracket);
    const auto bin = histogram.find(task.wanted);
    if (!bin && bracket != kAllFinite) {
      bracket = kAllFinite;
      continue;
    }
    if (!bin) {  // too many are not finite, or too few not zero
      const bool takes_all = histogram.above() < task.wanted && !histogram.is_empty();
      return above(takes_all ? 0 : kLargestFiniteKey);
    }
    const std::uint64_t too_few = task.wanted - bin->above;
    const std::uint64_t too_many = bin->count - too_few;
    if (too_many <= std::min(wrong, too_few)) return above(bin->keys.low);
    if (too_few <= wrong) return above(bin->keys.high);
    if (!histogram.is_fine()) {
      bracket = bin->keys;
      continue;
    }
    const std::uint64_t ties = (too_few * 65536 + bin->count / 2) / bin->count;  // both below 2^48
    return {bin->keys.high, static_cast<std::uint16_t>(std::clamp<std::uint64_t>(ties, 1, 65535))};
  }
}

// ---------------------------------------------------------------------------------------------
// Where to look first: a sample

constexpr std::size_t kMostSampled = 16384;
constexpr std::size_t kFewestSampled = 1024;

float element(ConstTensorView x, std::size_t i) noexcept {
  if (x.dtype == Dtype::f32) return static_cast<const float*>(x.data)[i];  // without a call
  float value;
  kernels::cast(x.slice(i, 1), {&value, 1, Dtype::f32}, Into::assign);
  return value;
}

/// One key at random of every stretch of equal length. Returns how many.
std::size_t draw_sample(const Task& task, std::uint64_t count, std::uint32_t* keys) noexcept {
  const std::uint64_t wanted = std::clamp<std::uint64_t>(count / 32, kFewestSampled, kMostSampled);
  const std::uint64_t stretch = std::max<std::uint64_t>(1, count / wanted);
  const auto drawn = static_cast<std::size_t>(std::min(count, wanted));
  auto x = task.layer.begin();
  std::uint64_t begin = 0;  // of x
  for (std::uint64_t i = 0; i < drawn; ++i) {
    const std::uint64_t at = i * stretch + mix64(i) % stretch;
    while (at - begin >= x->count) begin += (x++)->count;
    keys[i] = kernels::key_of(element(*x, at - begin), task.side);
  }
  return drawn;
}

/// The key of a rank, 0 being the largest.
std::uint32_t key_of_rank(std::span<std::uint32_t> keys, std::size_t rank) noexcept {
  const auto at = keys.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(keys.begin(), at, keys.end(), std::greater<>());
  return *at;
}

/// Holds the threshold but for a chance of a few in ten thousand: the ranks that are four standard
/// deviations away from where it stands among the sampled. What is sampled of the largest may be
/// too little to tell: then an octave more. Not inlined: its stack is free again for the
/// histograms.
[[gnu::noinline]] Bracket sampled_bracket(const Task& task) noexcept {
  std::uint32_t keys[kMostSampled];
  const std::uint64_t count = count_of(task.layer);
  const std::span<std::uint32_t> sample(keys, draw_sample(task, count, keys));
  const double rank = static_cast<double>(task.wanted) / static_cast<double>(count) *
                      static_cast<double>(sample.size());
  const double margin = 4 * std::sqrt(rank) + 4;
  Bracket bracket = kAllFinite;
  if (rank + margin < static_cast<double>(sample.size())) {
    const std::uint32_t key = key_of_rank(sample, static_cast<std::size_t>(rank + margin));
    bracket.low = std::clamp<std::uint32_t>(key, 1, kLargestFiniteKey) - 1;
  }
  const bool told = rank - margin >= 1;
  std::uint32_t high = key_of_rank(sample, told ? static_cast<std::size_t>(rank - margin) : 0);
  if (!told) high += 1u << 23;
  bracket.high = std::clamp(high, bracket.low + 1, kLargestFiniteKey);
  return bracket;
}

// ---------------------------------------------------------------------------------------------
// RedSync's: thresholds between the mean and the maximum

kernels::FloorCounts counts_above(const Task& task, const Floors& floors) noexcept {
  kernels::FloorCounts counts{};
  for_each_step(task.layer,
                [&](ConstTensorView x) { kernels::count_above(x, task.side, floors, counts); });
  return counts;
}

/// A share of the way from the mean to the maximum, as a key.
class Way {
 public:
  explicit Way(const Task& task) noexcept {
    kernels::KeySummary summary;
    for_each_step(task.layer,
                  [&](ConstTensorView x) { kernels::summarize(x, task.side, summary); });
    largest_ = std::bit_cast<float>(summary.largest);
    const double mean = summary.sum / static_cast<double>(count_of(task.layer));
    mean_ = std::min(mean, largest_);
  }
  std::uint32_t at(double share) const noexcept {
    return std::bit_cast<std::uint32_t>(static_cast<float>(mean_ + share * (largest_ - mean_)));
  }

 private:
  double mean_;
  double largest_;
};

Threshold trimmed(const Task& task) noexcept {
  const Way way(task);
  Floors floors{};  // the last one is 0: all that are not zero
  for (std::size_t i = 0; i < 5; ++i) floors[i] = way.at(0.8 - 0.2 * static_cast<double>(i));
  const kernels::FloorCounts counts = counts_above(task, floors);
  std::size_t enough = 0;
  while (enough + 1 < floors.size() && counts[enough] < task.wanted) ++enough;
  Bracket bracket = sampled_bracket(task);
  bracket.low = std::max(bracket.low, floors[enough]);
  bracket.high = std::max(bracket.high, bracket.low + 1);
  return refine(task, bracket, 0);
}

/// Three steps of a binary search among the floors, which descend in count: the one to which they
/// lead, or the first on the way that leaves between half and twice as many as wanted.
std::size_t walk(const Task& task, const kernels::FloorCounts& counts, bool& found) noexcept {
  std::size_t at = 3;
  for (std::size_t stride = 2;; stride /= 2) {
    found = counts[at] >= divide_up<std::uint64_t>(task.wanted, 2) && counts[at] <= 2 * task.wanted;
    if (found || stride == 0) return at;
    at = counts[at] < task.wanted ? at - stride : at + stride;
  }
}

/// Twelve steps; the paper ends after ten. Numbers with one far outlier want more.
constexpr int kSearchPasses = 4;

Threshold search(const Task& task) noexcept {
  const Way way(task);
  double low = 0;
  double eighth = 1.0 / 8;
  for (int pass = 0; pass < kSearchPasses; ++pass, eighth /= 8) {
    Floors floors;
    for (std::size_t i = 0; i < floors.size(); ++i) {
      floors[i] = way.at(low + eighth * static_cast<double>(i + 1));
    }
    const kernels::FloorCounts counts = counts_above(task, floors);
    bool found = false;
    const std::size_t at = walk(task, counts, found);
    if (found) return above(floors[at]);
    low += eighth * static_cast<double>(counts[at] < task.wanted ? at : at + 1);
  }
  const std::uint32_t floor = way.at(low);
  const std::uint32_t ceiling = way.at(low + 8 * eighth);
  return refine(task, {floor, std::max(ceiling, floor + 1)}, task.wanted / 2);
}

}  // namespace

std::uint64_t count_of(Layer layer) noexcept {
  std::uint64_t count = 0;
  for (const ConstTensorView& x : layer) count += x.count;
  return count;
}

Threshold find_threshold(Layer layer, Side side, std::uint64_t wanted, Select select) noexcept {
  const Task task{layer, side, wanted};
  switch (select) {
    case Select::bracket:
      return refine(task, sampled_bracket(task), wanted / 64);
    case Select::exact:
      return refine(task, sampled_bracket(task), 0);
    case Select::trimmed:
      return trimmed(task);
    case Select::search:
      return search(task);
  }
  return above(kLargestFiniteKey);
}

}  // namespace gradwire
