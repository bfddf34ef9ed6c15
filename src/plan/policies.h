// What a program asks for in a few words, as a plan: every layer by its name, with the reason.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/plan.h"
#include "plan/layer_policy.h"

namespace gradwire {

/// Smaller layers travel exactly: they cost next to nothing.
inline constexpr std::uint64_t kLeastElements = 1024;
/// Smaller layers are not worth selecting from.
inline constexpr std::uint64_t kLeastSparseElements = 16384;

/// The reason of layers that take a policy's own way.
inline constexpr const char* kAskedFor = "asked for";

/// A layer as a model's author made it.
struct Layer {
  std::string name{};
  std::uint64_t elements = 0;
  std::uint32_t dimensions = 0;
  std::string obstacle{};  ///< why no codec takes it; empty: codecs do
};

/// One way for all layers that are worth it, but for those with patterns of their own. Layers that
/// travel exactly have its feedback, too.
struct DensePolicy {
  Way way{};
  std::vector<std::string> exact{};                   ///< patterns of layers
  std::vector<std::pair<std::string, Way>> others{};  ///< patterns, the first holds
};
Plan plan_for(std::span<const Layer> layers, const DensePolicy& policy);
/// The same, but what would take the policy's way takes that of `chosen`.
Plan plan_for(std::span<const Layer> layers, const DensePolicy& policy, const Plan& chosen);

/// Few numbers of large layers, and the rest later. Layers that are not worth selecting from, or
/// faster on this network without, take the dense policy's way, as do all in the first steps.
struct SparsePolicy {
  DensePolicy dense{};
  float density = 0.001F;
  std::string values = "fp32";
  std::uint64_t warmup = 0;  ///< steps
  bool ramp = false;         ///< in the first steps densities fall, instead
  Network network{};
};
Plan plan_for(std::span<const Layer> layers, const SparsePolicy& policy);

/// With this density, as `SparsePolicy` has it. Throws as `Codec::parse`.
Codec sparse_codec(const SparsePolicy& policy);

}  // namespace gradwire
