// Copies numbers from one dtype to another.
#pragma once

#include <span>

#include "gradwire/tensor.h"
#include "tensor/into.h"

namespace gradwire::kernels {

/// to = from or to += from, element by element; sums are formed in fp32. Counts are equal. Rounds
/// to nearest even; what is too large for f16 becomes infinite; NaN stays NaN. The same dtype is
/// copied bit for bit.
void cast(ConstTensorView from, TensorView to, Into into) noexcept;

/// Rounds numbers to what a tensor of `dtype` would hold of them.
void round_to(Dtype dtype, std::span<float> numbers) noexcept;

}  // namespace gradwire::kernels
