#include "gradients/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <string>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

constexpr std::string_view kNames[] = {"gaussian", "laplace", "student", "sparse"};
constexpr std::size_t kSparseRow = 256;
constexpr std::uint64_t kSparseRowsPerFull = 16;

/// std::mt19937_64 is the same everywhere; the distributions of <random> are not.
class Source {
 public:
  explicit Source(std::uint64_t seed) : bits_(seed) {}

  std::uint64_t bits() { return bits_(); }
  /// In (0, 1], so that its logarithm is finite.
  double uniform() { return static_cast<double>((bits_() >> 11) + 1) * 0x1p-53; }

 private:
  std::mt19937_64 bits_;
};

/// Box-Muller: two independent draws at a time.
void fill_gaussian(Source& source, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(source.uniform()));
    const double angle = 2 * std::numbers::pi * source.uniform();
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

void fill_laplace(Source& source, std::span<float> out) {
  for (float& value : out) {
    const double magnitude = -std::log(source.uniform());
    value = static_cast<float>(source.bits() >> 63 != 0 ? magnitude : -magnitude);
  }
}

/// Bailey's polar form of Box-Muller: sqrt(n (u^(-2/n) - 1)) cos(2 pi v), here for n = 3.
void fill_student(Source& source, std::span<float> out) {
  for (float& value : out) {
    const double u = source.uniform();
    const double radius = std::sqrt(3 * (1 / std::cbrt(u * u) - 1));
    value = static_cast<float>(radius * std::cos(2 * std::numbers::pi * source.uniform()));
  }
}

void fill_sparse(Source& source, std::span<float> out) {
  while (!out.empty()) {
    const std::span<float> row = out.first(std::min(kSparseRow, out.size()));
    if (source.bits() % kSparseRowsPerFull == 0) {
      fill_gaussian(source, row);
    } else {
      std::fill(row.begin(), row.end(), 0.0F);
    }
    out = out.subspan(row.size());
  }
}

}  // namespace

std::string_view name_of(Distribution distribution) {
  return kNames[static_cast<std::size_t>(distribution)];
}

Distribution parse_distribution(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Distribution>(i);
    known += (known.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  throw Error(ErrorCode::invalid_argument,
              "unknown data '" + std::string(name) + "'; choose one of: " + known);
}

void fill(Distribution distribution, std::uint64_t seed, std::span<float> out) {
  Source source(seed);
  switch (distribution) {
    case Distribution::gaussian:
      return fill_gaussian(source, out);
    case Distribution::laplace:
      return fill_laplace(source, out);
    case Distribution::student_t3:
      return fill_student(source, out);
    case Distribution::sparse:
      return fill_sparse(source, out);
  }
}

}  // namespace gradwire::cli
