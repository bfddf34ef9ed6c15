// Which tensors of a file are judged together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradients/safetensors.h"
#include "gradwire/tensor.h"

namespace gradwire::cli {

struct Layer {
  std::uint64_t key;  ///< for RandomKey::tensor: a hash of the layer's name
  ConstTensorView values;
  std::size_t dimensions = 1;
};

/// The layers of one model at one step: what would travel in one frame.
struct GradientGroup {
  std::string name;
  std::uint64_t step = 0;
  /// The name of the sum over steps that the group counts towards; empty when it counts towards
  /// none.
  std::string total{};
  bool whole = true;  ///< false: without the model's embeddings
  std::vector<Layer> layers{};
};

/// Sums over steps leave the first ones out: gradients of a model that has learnt nothing yet are
/// unlike all later ones.
inline constexpr std::uint64_t kFirstTotalledStep = 20;

/// Tensors named MODEL/STEP/LAYER form a group MODEL/STEP, and those of steps from 20 on count
/// towards MODEL/steps>=20. A model with layers `embed`, `position` or `head` gets a second set of
/// groups, named MODEL-without-embeddings, of all other layers. Tensors named otherwise are grouped
/// by what stands before the last '/'; those without one form the group "all". Groups of a model
/// stand together, by step.
std::vector<GradientGroup> group_gradients(std::span<const NamedTensor> tensors);

/// Whether a group's name matches one of the patterns, as a shell has them, or there are none.
bool is_wanted(std::span<const std::string> patterns, const std::string& group);

/// A 64-bit hash of a layer's name.
std::uint64_t layer_key(std::string_view name);

}  // namespace gradwire::cli
