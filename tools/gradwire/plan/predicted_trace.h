// A predicted step as a trace for viewers, by the writers of recorded ones.
#pragma once

#include <span>
#include <string>

#include "plan/prediction.h"

namespace gradwire::cli {

/// Chrome's JSON if the path ends with ".json", or else Perfetto's format: one track for computing
/// and one for each resource that does something. Throws `Error(io)` if it cannot be written.
void write_predicted_trace(const std::string& path, const Workload& workload,
                           std::span<const PredictedSpan> spans);

}  // namespace gradwire::cli
