// A timeline in Perfetto's own format, for ui.perfetto.dev and its trace processor.
#pragma once

#include <iosfwd>

#include "trace/timeline.h"

namespace gradwire::trace {

/// A group of tracks per rank, in it one per communicator if there are several, a track per row, a
/// slice per span. A message is a flow from the begin of the slice that sends it to the end of the
/// one that receives it.
void write_perfetto(std::ostream& out, const Timeline& timeline);

}  // namespace gradwire::trace
