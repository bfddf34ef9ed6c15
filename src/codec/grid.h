// The parts of the grid codec: settings, fitting them to a layer, encoding, decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codec/spec.h"
#include "gradwire/codec.h"
#include "tensor/into.h"

namespace gradwire::grid {

enum class Target : std::uint8_t { step, nmse };

struct Settings {
  float amount;    // of the target: a step relative to the rms, or a normalized squared error
  float locality;  // 0: one step per layer; 1: steps follow the block's rms
  float rms;       // of the layer; 0: measure it
  Rounding rounding;
  Target target;
};
static_assert(offsetof(Settings, target) + 1 <= sizeof(Codec::Params));

inline constexpr float kMinStep = 0x1p-10f;
inline constexpr float kMaxStep = 16.0f;
inline constexpr float kMinNmse = 1e-7f;
inline constexpr float kMaxNmse = 1.0f;

/// Of a codec `grid:step=…`; nothing of any other.
std::optional<float> step_of(const Codec& codec) noexcept;

/// The same codec, for which `step_of` is something, with another step between the limits.
Codec with_step(const Codec& codec, float step) noexcept;

/// The settings with the layer's rms and, where an error was asked for, with the step that makes
/// it. `notes` are the energies of its blocks, or none.
Settings fitted(Settings settings, std::span<const ConstTensorView> layer,
                std::span<double> notes = {}) noexcept;

std::size_t max_bytes(std::size_t count) noexcept;

/// With the `notes` of the whole layer that `x` is a slice of, or none.
std::size_t encode(const Settings& settings, ConstTensorView x, const EncodeOptions& options,
                   std::span<const double> notes, std::byte* out) noexcept;

Status decode(const Settings& settings, std::span<const std::byte> payload, TensorView out,
              Into into) noexcept;

}  // namespace gradwire::grid
