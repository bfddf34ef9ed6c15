// The traces of all ranks on one clock, as rows of spans: what writers draw.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/trace_file.h"

namespace gradwire::trace {

struct Span {
  const Event* event = nullptr;
  std::int64_t begin_ns = 0;  ///< since 1970, on the clock of rank 0
  std::int64_t end_ns = 0;
  /// A message is sent in one span and received in another, which have the same number; 0: none, or
  /// the other end is not in the trace.
  std::uint64_t message = 0;
};

/// Spans that do not overlap, in the order of time. Operations that were under way at once are in
/// different rows.
struct Row {
  std::string name;
  std::vector<Span> spans;
};

/// What one rank did in one communicator.
struct CommunicatorRows {
  const RankTrace* trace = nullptr;
  std::string name;  ///< "group 3, rank 1 of 2"; empty if all traces are of one communicator
  std::vector<Row> rows;
};

/// What one rank of the job did.
struct RankRows {
  std::string name;  ///< "rank 2", or "rank 02" of more than ten, for the order of letters
  std::vector<CommunicatorRows> communicators;
};

struct Timeline {
  std::vector<RankRows> ranks;  ///< in the order of their numbers in the job
  std::uint64_t messages = 0;   ///< of which both ends are there
  /// Of jobs of which other ranks left a trace: "rank 2", or "ranks 4 to 7 of 8 (group 2)".
  std::vector<std::string> missing;
};

/// `traces` are ordered as `read_traces` returns them, and must outlive the result.
Timeline join(std::span<const RankTrace> traces);

/// "encode fc1.weight", for people.
std::string title_of(const RankTrace& trace, const Event& event);

}  // namespace gradwire::trace
