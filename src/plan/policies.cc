#include "plan/policies.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "plan/pattern.h"

namespace gradwire {
namespace {

constexpr const char* kSelections[] = {"bracket", "exact", "trimmed", "search"};
/// On the way to that of a job, as Deep Gradient Compression has them.
constexpr float kRamp[] = {0.25F, 0.0625F, 0.015625F, 0.004F};

Way with_codec(Way way, const Codec& codec) {
  way.codec = codec;
  return way;
}

/// What does not depend on how much a layer would gain.
std::optional<Stage> settled(const Layer& layer, const DensePolicy& policy) {
  const auto exactly = [&](std::string reason) {
    return Stage{0, with_codec(policy.way, Way{}.codec), std::move(reason)};
  };
  if (layer.dimensions < 2) return exactly("biases and norms travel exactly");
  if (layer.elements < kLeastElements) {
    return exactly(fmt::format("fewer than {} numbers", kLeastElements));
  }
  if (!layer.obstacle.empty()) return exactly(layer.obstacle);
  for (const std::string& pattern : policy.exact) {
    if (matches(pattern, layer.name)) return exactly(fmt::format("exact: {}", pattern));
  }
  for (const auto& [pattern, way] : policy.others) {
    if (matches(pattern, layer.name)) return Stage{0, way, fmt::format("asked for by {}", pattern)};
  }
  return std::nullopt;
}

Codec sparse_codec(const SparsePolicy& policy, float density, const char* select) {
  return Codec::parse(
      fmt::format("topk:density={},select={},values={}", density, select, policy.values));
}

/// Behind what comes first. A stage that would end at once is left out.
void add(std::vector<Stage>& stages, Stage stage) {
  if (!stages.empty() && stages.back().from_step == stage.from_step) stages.pop_back();
  stages.push_back(std::move(stage));
}

std::vector<Stage> warmed_up(const SparsePolicy& policy, Stage last) {
  std::vector<Stage> stages;
  if (policy.warmup > 0 && !policy.ramp) add(stages, {0, policy.dense.way, "warm-up"});
  if (policy.warmup > 0 && policy.ramp) {
    std::vector<float> densities;
    for (const float density : kRamp) {
      if (density > policy.density) densities.push_back(density);
    }
    const double part = static_cast<double>(policy.warmup) /
                        static_cast<double>(std::max<std::size_t>(1, densities.size()));
    for (std::size_t i = 0; i < densities.size(); ++i) {
      const Codec codec = sparse_codec(policy, densities[i], kSelections[0]);
      add(stages, {static_cast<std::uint64_t>(std::nearbyint(static_cast<double>(i) * part)),
                   with_codec(policy.dense.way, codec), "warm-up"});
    }
  }
  last.from_step = stages.empty() ? 0 : policy.warmup;
  add(stages, std::move(last));
  return stages;
}

std::vector<Stage> stages_for(const Layer& layer, const SparsePolicy& policy) {
  if (auto stage = settled(layer, policy.dense)) return {*stage};
  if (layer.elements < kLeastSparseElements) {
    return {{0, policy.dense.way,
             fmt::format("fewer than {} numbers: not worth selecting from", kLeastSparseElements)}};
  }
  std::vector<Codec> codecs;
  for (const char* select : kSelections)
    codecs.push_back(sparse_codec(policy, policy.density, select));
  codecs.push_back(policy.dense.way.codec);
  const Codec& codec = fastest(codecs, layer.elements, policy.network);
  const std::string reason =
      fmt::format("the fastest between {} ranks at {:.4g} MB/s", policy.network.ranks,
                  policy.network.bytes_per_second / 1e6);
  const Stage last{0, with_codec(policy.dense.way, codec), reason};
  if (!codec.traits().sparse) return {last};
  return warmed_up(policy, last);
}

}  // namespace

Plan plan_for(std::span<const Layer> layers, const DensePolicy& policy) {
  Plan plan;
  for (const Layer& layer : layers) {
    const auto stage = settled(layer, policy);
    plan.layers.push_back({layer.name, {stage.value_or(Stage{0, policy.way, kAskedFor})}});
  }
  return plan;
}

Plan plan_for(std::span<const Layer> layers, const DensePolicy& policy, const Plan& chosen) {
  Plan plan;
  for (const Layer& layer : layers) {
    const auto stage = settled(layer, policy);
    plan.layers.push_back(
        {layer.name, stage ? std::vector<Stage>{*stage} : chosen.stages_of(layer.name)});
  }
  return plan;
}

Plan plan_for(std::span<const Layer> layers, const SparsePolicy& policy) {
  Plan plan;
  for (const Layer& layer : layers) plan.layers.push_back({layer.name, stages_for(layer, policy)});
  return plan;
}

Codec sparse_codec(const SparsePolicy& policy) {
  return sparse_codec(policy, policy.density, kSelections[0]);
}

}  // namespace gradwire
