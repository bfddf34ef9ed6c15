// A timeline in Chrome's JSON, on the clock of torch.profiler's files.
#pragma once

#include <iosfwd>

#include "trace/timeline.h"

namespace gradwire::trace {

/// Times count from torch.profiler's `baseTimeNanoseconds`, so that the `traceEvents` of its files
/// and of this one can stand in one list. Processes here have numbers that none of a system has.
void write_chrome(std::ostream& out, const Timeline& timeline);

}  // namespace gradwire::trace
