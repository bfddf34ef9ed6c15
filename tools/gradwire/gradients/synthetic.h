// Numbers that stand in for gradients: the same for the same seed, whatever the machine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire::cli {

enum class Distribution : std::uint8_t {
  gaussian,
  laplace,
  student_t3,  ///< Student's t with three degrees of freedom: tails as heavy as a transformer's
  sparse,      ///< Gaussian rows of 256, of which 15 in 16 are zero: an embedding's gradient
};

/// "gaussian", "laplace", "student", "sparse".
std::string_view name_of(Distribution distribution);
/// Throws Error(invalid_argument) that lists the names.
Distribution parse_distribution(std::string_view name);

/// Independent draws with unit scale.
void fill(Distribution distribution, std::uint64_t seed, std::span<float> out);

}  // namespace gradwire::cli
