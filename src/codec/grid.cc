// `grid`: an entropy-coded grid. Numbers become integers, in steps that depend on the layer's and
// the block's rms; the integers go through an entropy coder whose table is picked per block.
//
// A payload is a small header and then one chunk after the other, 65 536 numbers each. A chunk is
// empty (all zeros), coded, or packed when coding would not pay. docs/format.md, "Grid", is the
// specification.
#include "codec/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/grid_format.h"
#include "codec/registry.h"

namespace gradwire {
namespace {

using namespace grid;

Codec::Params parse(SpecReader& spec) {
  Settings settings{
      .amount = 0.5f, .locality = 0, .rms = 0, .rounding = {}, .target = Target::step};
  if (spec.has("step") && spec.has("nmse")) {
    throw Error(ErrorCode::invalid_spec, "codec grid takes step= or nmse=, not both");
  }
  settings.amount = spec.number("step", 0.5f, kMinStep, kMaxStep);
  if (spec.has("nmse")) settings.target = Target::nmse;
  const float nmse = spec.number("nmse", 0, kMinNmse, kMaxNmse);
  if (settings.target == Target::nmse) settings.amount = nmse;
  settings.locality = spec.number("locality", 0.5f, 0, 1) + 0.0f;
  settings.rounding = static_cast<Rounding>(spec.choice("rounding", 0, kRoundings));
  settings.rms = spec.number("rms", 0, std::numeric_limits<float>::denorm_min(), 3e38f);
  return pack(settings);
}

std::string format(const Codec::Params& params) {
  const auto settings = unpack<Settings>(params);
  std::string text = fmt::format(
      "grid:{}={},locality={},rounding={}", settings.target == Target::step ? "step" : "nmse",
      settings.amount, settings.locality, kRoundings[static_cast<int>(settings.rounding)]);
  return settings.rms == 0 ? text : text + fmt::format(",rms={}", settings.rms);
}

bool valid(const Codec::Params& params) noexcept {
  const auto settings = unpack<Settings>(params);
  const bool step = settings.target == Target::step;
  return settings.target <= Target::nmse && settings.rounding <= Rounding::dither &&
         settings.amount >= (step ? kMinStep : kMinNmse) &&
         settings.amount <= (step ? kMaxStep : kMaxNmse) && settings.locality >= 0 &&
         settings.locality <= 1 && settings.rms >= 0 && settings.rms <= 3e38f &&
         rest_is_zero<Settings>(params);
}

Traits traits(const Codec::Params& params) noexcept {
  const Rounding rounding = unpack<Settings>(params).rounding;
  return {.lossless = false,
          .unbiased = rounding != Rounding::nearest,
          .fixed_size = false,
          .keeps_zeros = rounding != Rounding::dither};
}

std::size_t max_grid_bytes(const Codec::Params&, std::size_t count) noexcept {
  return max_bytes(count);
}

/// The entropy of normally distributed numbers in such steps, which is more than most gradients
/// take.
std::size_t expected_bytes(const Codec::Params& params, std::size_t count) noexcept {
  constexpr double kBitsAtRms = 2.05;  // log2(sqrt(2 pi e))
  constexpr double kLeastBits = 0.1;
  const auto settings = unpack<Settings>(params);
  const double step =
      settings.target == Target::step ? settings.amount : std::sqrt(12.0 * settings.amount);
  const double bits = std::max(kLeastBits, kBitsAtRms - std::log2(step));
  return std::min(max_bytes(count),
                  static_cast<std::size_t>(bits * static_cast<double>(count) / 8));
}

Codec::Params fit(const Codec::Params& params, std::span<const ConstTensorView> layer,
                  std::span<double> notes) noexcept {
  return pack(fitted(unpack<Settings>(params), layer, notes));
}

std::size_t encode_grid(const Codec::Params& params, ConstTensorView x,
                        const EncodeOptions& options, std::byte* out) noexcept {
  return encode(unpack<Settings>(params), x, options, {}, out);
}

std::size_t encode_noted(const Codec::Params& params, ConstTensorView x,
                         const EncodeOptions& options, std::span<const double> notes,
                         std::byte* out) noexcept {
  return encode(unpack<Settings>(params), x, options, notes, out);
}

Status decode_grid(const Codec::Params& params, std::span<const std::byte> payload, Dtype,
                   TensorView out, Into into) noexcept {
  return decode(unpack<Settings>(params), payload, out, into);
}

}  // namespace

const CodecKind kGrid = {.id = 6,
                         .name = "grid",
                         .parse = parse,
                         .format = format,
                         .valid = valid,
                         .traits = traits,
                         .fit = fit,
                         .note_count = block_count,
                         .cost = {5, 3.5},
                         .max_bytes = max_grid_bytes,
                         .expected_bytes = expected_bytes,
                         .encode = encode_grid,
                         .encode_noted = encode_noted,
                         .decode = decode_grid};

std::optional<float> grid::step_of(const Codec& codec) noexcept {
  if (&CodecAccess::kind(codec) != &kGrid) return {};
  const auto settings = unpack<Settings>(CodecAccess::params(codec));
  return settings.target == Target::step ? std::optional(settings.amount) : std::nullopt;
}

Codec grid::with_step(const Codec& codec, float step) noexcept {
  auto settings = unpack<Settings>(CodecAccess::params(codec));
  settings.amount = std::clamp(step, kMinStep, kMaxStep);
  return CodecAccess::make(&kGrid, pack(settings));
}

}  // namespace gradwire
