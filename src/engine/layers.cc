#include "engine/layers.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "engine/parts.h"

namespace gradwire::engine {
namespace {

std::string describe(std::size_t count, Dtype dtype) {
  return fmt::format("{} elements of {}", count, name_of(dtype));
}

std::uint64_t hash(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

/// The stages of a plan from a step on, the first of them from that very step.
std::vector<Stage> stages_from(const std::vector<Stage>& stages, std::uint64_t from_step) {
  std::vector<Stage> later{stage_at(stages, from_step)};
  later.front().from_step = from_step;
  for (const Stage& stage : stages) {
    if (stage.from_step > from_step) later.push_back(stage);
  }
  return later;
}

/// The first is from the step that the words are about.
std::string in_words(const std::vector<Stage>& stages) {
  std::string words;
  for (const Stage& stage : stages) {
    words += words.empty() ? stage.way.text()
                           : fmt::format(", from step {} on {}", stage.from_step, stage.way.text());
  }
  return words;
}

/// What was planned before a step, then what is planned from it on.
std::vector<Stage> joined(std::vector<Stage> before, std::vector<Stage> later) {
  const std::uint64_t from_step = later.front().from_step;
  std::erase_if(before, [&](const Stage& stage) { return stage.from_step >= from_step; });
  if (before.empty() && from_step > 0) before.push_back({.reason = "there was no plan yet"});
  for (Stage& stage : later) {  // the same way goes on: a plan may be set again and again
    if (before.empty() || before.back().way != stage.way) before.push_back(std::move(stage));
  }
  return before;
}

}  // namespace

void Layers::add(std::span<const LayerShape> layers) {
  const std::lock_guard lock(mutex_);
  for (const LayerShape& layer : layers) {
    if (layer.name.empty()) refuse("a layer has no name, by which plans and operations know it");
    const auto known = by_name_.find(layer.name);
    if (known == by_name_.end() || known->second.shape == layer) continue;
    refuse(
        fmt::format("layer '{}' has {} and was registered with {}: give another layer another "
                    "name",
                    layer.name, describe(layer.count, layer.dtype),
                    describe(known->second.shape.count, known->second.shape.dtype)));
  }
  for (const LayerShape& layer : layers) by_name_.try_emplace(layer.name, Layer{layer, {}});
}

void Layers::check(const Plan& plan) const {
  plan.check();
  if (by_name_.empty()) refuse("there are no layers to plan for: register them first");
  std::vector<std::string> names;
  for (const auto& [name, layer] : by_name_) names.push_back(name);
  plan.check_matches(names);
}

std::vector<LayerWays> Layers::ways(const Plan& plan, std::uint64_t from_step) const {
  const std::lock_guard lock(mutex_);
  check(plan);
  std::vector<LayerWays> found;
  for (const auto& [name, layer] : by_name_) {
    found.push_back({name, in_words(stages_from(plan.stages_of(name), from_step))});
  }
  return found;
}

PlanHash Layers::hash_of(const Plan& plan, std::uint64_t from_step) const {
  std::string shapes, ways;
  for (const LayerWays& each : this->ways(plan, from_step)) ways += each.ways + '\n';
  const std::lock_guard lock(mutex_);
  for (const auto& [name, layer] : by_name_) {
    shapes += fmt::format("{}\n{}\n", name, describe(layer.shape.count, layer.shape.dtype));
  }
  return {hash(shapes), hash(ways)};
}

void Layers::set(const Plan& plan, std::uint64_t from_step) {
  const std::lock_guard lock(mutex_);
  check(plan);
  for (auto& [name, layer] : by_name_) {
    layer.stages = joined(std::move(layer.stages), stages_from(plan.stages_of(name), from_step));
  }
  planned_ = true;
}

Way Layers::way_of(const Tensor& tensor, std::size_t count,
                   std::optional<std::uint64_t> step) const {
  if (tensor.way) return *tensor.way;
  const std::lock_guard lock(mutex_);
  if (!planned_) return {};
  const auto found = by_name_.find(tensor.name);
  if (found == by_name_.end() || found->second.stages.empty()) {
    refuse(
        fmt::format("tensor '{}' has no way, and the plan does not know it: register its layer "
                    "before the plan is set, or give it a way",
                    label_of(tensor)));
  }
  const Layer& layer = found->second;
  if (layer.shape.count != count || layer.shape.dtype != tensor.view.dtype) {
    refuse(
        fmt::format("tensor '{}' has {} and was registered with {}: give another tensor another "
                    "name",
                    label_of(tensor), describe(count, tensor.view.dtype),
                    describe(layer.shape.count, layer.shape.dtype)));
  }
  if (layer.stages.size() > 1 && !step) {
    refuse(
        fmt::format("the plan's way of tensor '{}' depends on the step: give the operation "
                    "its step",
                    label_of(tensor)));
  }
  return stage_at(layer.stages, step.value_or(0)).way;
}

}  // namespace gradwire::engine
