// What is done to the numbers of tensors besides encoding them. Every instruction set gives the
// same bits. Spans of one call have the same length, and may be the same memory where one of them
// is written to.
#pragma once

#include <span>

#include "gradwire/tensor.h"

namespace gradwire::kernels {

/// numbers *= factor
void scale(std::span<float> numbers, float factor) noexcept;

/// The sum of squares.
double energy(std::span<const float> numbers) noexcept;

/// The same within a millionth of it, and several times as fast. Not finite where a number is not.
double quick_energy(ConstTensorView numbers) noexcept;

/// Neither NaN nor infinity is among them.
bool all_finite(ConstTensorView numbers) noexcept;

/// What a step of SGD with momentum adds up.
struct Momentum {
  float decay = 0;
  bool nesterov = false;
};

/// speeds = decay * speeds + gradients; numbers += speeds, or with Nesterov's gradients + decay *
/// speeds. Speeds that are not finite are forgotten.
void add_step(std::span<const float> gradients, const Momentum& momentum, std::span<float> numbers,
              std::span<float> speeds) noexcept;

/// kept = (wanted - sent) * factor, but 0 where that is not finite.
void keep_rest(std::span<const float> wanted, std::span<const float> sent, float factor,
               std::span<float> kept) noexcept;

/// kept += (wanted - sent) * factor, but 0 where that is not finite.
void add_rest(std::span<const float> wanted, std::span<const float> sent, float factor,
              std::span<float> kept) noexcept;

}  // namespace gradwire::kernels
