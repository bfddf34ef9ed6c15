// A workload from a trace that torch.profiler made of some training steps.
#pragma once

#include <string_view>

#include "plan/workload.h"

namespace gradwire {

/// `trace` is the JSON of `export_chrome_trace`, recorded with `record_shapes=True`. Steps of it
/// are averaged, gradient by gradient in the order in which they are ready. Traces do not know
/// names: tensors are called by order and shape, "12: 64x3x3x3". A gradient is ready when autograd
/// has added it up or, where the trace has kernels of a GPU, when those launched until then are
/// through. What of a step is not backward counts as forward.
///
/// Throws `Error(invalid_spec)` that says in one sentence what the trace lacks, or what in it
/// cannot be.
Workload profile_workload(std::string_view trace);

}  // namespace gradwire
