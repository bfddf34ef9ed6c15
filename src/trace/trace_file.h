// The file that a rank leaves: whose events they are, the texts they name, the events, a checksum.
//
// It is written and read by the same version of gradwire, on hosts of the same byte order: who
// wants to keep or to pass on a trace makes one for Perfetto of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/recorder.h"

namespace gradwire::trace {

inline constexpr std::string_view kTraceSuffix = ".gwtrace";

/// What a rank has recorded.
struct RankTrace {
  Origin origin;
  std::int64_t unix_minus_steady_ns = 0;  ///< of this rank's clocks, when the file was written
  std::uint64_t overwritten = 0;          ///< earlier events, which are lost
  std::vector<std::string> texts;
  std::vector<Event> events;  ///< in the order of their ends, nearly
};

/// Readers see the old file or the new one, nothing between. Throws `Error(io)`.
void write_trace(const std::string& path, const Origin& origin, std::uint64_t overwritten,
                 std::span<const std::string> texts, std::span<const Event> events);

/// Throws `Error(io)` when it cannot be read and `Error(bad_frame)` when it is something else, or
/// damaged: whatever it returns is safe to use. Times are so bounded that neither putting them on
/// another rank's clock nor the difference of two overflows.
RankTrace read_trace(const std::string& path);

/// What ranks have left in a folder.
struct TraceFolder {
  std::vector<RankTrace> traces;      ///< by communicator and rank, each once
  std::vector<std::string> left_out;  ///< for each other file, a sentence that names it
};

/// One file that cannot be read does not keep others from it. Throws `Error(io)` when the folder
/// cannot be read and `Error(invalid_argument)` when nobody has left anything in it.
TraceFolder read_traces(const std::string& directory);

}  // namespace gradwire::trace
