// What tests share that need numbers: tensors of any dtype, numbers like those of gradients, and
// half precision by arithmetic to judge the kernels by.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradwire/isa.h"
#include "gradwire/tensor.h"

namespace gradwire::test {

inline constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

// ---------------------------------------------------------------------------------------------
// Half precision by arithmetic, not by bit tricks: the reference for the kernels.

float widen(std::uint16_t bits, Dtype dtype);
/// Rounds to nearest even; too large becomes infinite; NaN keeps its sign and high bits and is
/// quiet.
std::uint16_t narrow(float x, Dtype dtype);

// ---------------------------------------------------------------------------------------------
// Tensors

/// Numbers in a heap block of exactly their size, so that AddressSanitizer sees any read beside
/// them.
class Tensor {
 public:
  Tensor(std::size_t count, Dtype dtype)
      : bytes_(count * size_of(dtype)), count_(count), dtype_(dtype) {}
  /// Rounds `values` to `dtype`.
  Tensor(std::span<const float> values, Dtype dtype);

  ConstTensorView view() const { return {bytes_.data(), count_, dtype_}; }
  TensorView view() { return {bytes_.data(), count_, dtype_}; }
  float operator[](std::size_t i) const;
  std::vector<float> floats() const;
  std::size_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t count_;
  Dtype dtype_;
};

std::vector<float> gaussian(std::size_t count, std::uint64_t seed = 1, float scale = 1);
std::vector<float> laplace(std::size_t count, std::uint64_t seed = 1, float scale = 1);
std::vector<float> student_t3(std::size_t count, std::uint64_t seed = 1, float scale = 1);
/// Gaussian, but 19 of 20 numbers are zero.
std::vector<float> sparse(std::size_t count, std::uint64_t seed = 1, float scale = 1);
/// Stretches of 1 to 300 numbers of very different scales, with zeros, constants and outliers among
/// them.
std::vector<float> gradient_like(std::size_t count, std::uint64_t seed = 1);

/// Sum of squared errors over sum of squares.
double nmse(std::span<const float> x, std::span<const float> decoded);

// ---------------------------------------------------------------------------------------------

/// Runs `body` once on each instruction set of this CPU.
template <typename Body>
void on_every_isa(const Body& body) {
  for (const std::string& isa : available_isas()) {
    SCOPED_TRACE(isa);
    use_isa(isa);
    body();
  }
  use_isa("auto");
}

}  // namespace gradwire::test
