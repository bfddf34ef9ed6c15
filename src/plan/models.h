// Workloads of well-known models. Names and sizes are those of the tensors of the real modules, in
// the order in which torch 2.13 has their gradients; times are estimates (model_layers.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/workload.h"

namespace gradwire {

/// "vgg16", "resnet50", …, "llama:7b".
std::vector<std::string> model_names();

/// Seconds that a step takes on a V100-class GPU, about: models.cc says for each model where the
/// figure is from. Throws as `model_workload` does.
double default_step_seconds(std::string_view name);

/// A third of a step is forward, two thirds are backward. Throws `Error(invalid_argument)` for a
/// model that is not there, with the names of those that are, and for a step that takes no time.
Workload model_workload(std::string_view name, double step_seconds);

}  // namespace gradwire
