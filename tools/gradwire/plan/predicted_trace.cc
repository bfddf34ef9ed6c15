#include "plan/predicted_trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>
#include <vector>

#include "gradwire/error.h"
#include "trace/chrome_writer.h"
#include "trace/perfetto_writer.h"

namespace gradwire::cli {
namespace {

using Work = PredictedSpan::Work;

constexpr std::string_view kForward = "forward";
/// Of computing, and of each resource.
constexpr std::string_view kTracks[] = {"computing", "codecs",  "second device",
                                        "inside",    "sending", "receiving"};

std::string_view name_of(Work work) {
  switch (work) {
    case Work::computing:
      return "compute";
    case Work::preparing:
      return "prepare";
    case Work::encode:
      return "encode";
    case Work::decode:
      return "decode";
    case Work::inside:
      return "send inside";
    case Work::send:
      return "send";
    case Work::receive:
      return "receive";
    case Work::handling:
      break;
  }
  return "hand over";
}

std::size_t track_of(const PredictedSpan& span) {
  return span.work == Work::computing ? 0 : 1 + static_cast<std::size_t>(span.interval.resource);
}

std::int64_t nanoseconds(double seconds) { return std::llround(1e9 * seconds); }

/// Events of a rank that does not exist, from the begin of its step on.
class Events {
 public:
  Events(const Workload& workload, std::span<const PredictedSpan> spans) {
    if (workload.forward_seconds > 0) {
      add(0, {.end_ns = nanoseconds(workload.forward_seconds),
              .number = trace::kNoPiece,
              .what = text(kForward)});
    }
    std::vector<trace::Text> layers;
    for (const WorkloadTensor& tensor : workload.tensors) layers.push_back(text(tensor.name));
    for (const PredictedSpan& span : spans) {
      const Interval& interval = span.interval;
      const bool piece = interval.kind == Interval::Kind::task;
      add(track_of(span), {.begin_ns = nanoseconds(workload.forward_seconds + interval.begin),
                           .end_ns = nanoseconds(workload.forward_seconds + interval.end),
                           .number = piece ? interval.piece : trace::kNoPiece,
                           .bytes = static_cast<std::uint64_t>(std::llround(span.bytes)),
                           .what = text(name_of(span.work)),
                           .layer = layers[interval.tensor],
                           .more_layers = static_cast<std::uint32_t>(span.more_tensors)});
    }
  }

  /// Tracks on which nothing happens are left out. Valid as long as this is.
  trace::Timeline timeline(const std::string& name) {
    trace::CommunicatorRows rows{.trace = &trace_, .name = "", .rows = {}};
    for (std::size_t track = 0; track < std::size(kTracks); ++track) {
      trace::Row row{.name = std::string(kTracks[track]), .spans = {}};
      for (std::size_t i = 0; i < trace_.events.size(); ++i) {
        const trace::Event& event = trace_.events[i];
        if (tracks_[i] == track) row.spans.push_back({&event, event.begin_ns, event.end_ns});
      }
      // Nothing overlaps on a track: rounding may only make it seem so.
      std::ranges::stable_sort(row.spans, {}, &trace::Span::begin_ns);
      for (std::size_t i = 1; i < row.spans.size(); ++i) {
        row.spans[i].begin_ns = std::max(row.spans[i].begin_ns, row.spans[i - 1].end_ns);
      }
      if (!row.spans.empty()) rows.rows.push_back(std::move(row));
    }
    return {.ranks = {{name, {std::move(rows)}}}, .missing = {}};
  }

 private:
  trace::Text text(std::string_view text) {
    const auto found = std::ranges::find(trace_.texts, text);
    if (found == trace_.texts.end()) {
      trace_.texts.emplace_back(text);
      return static_cast<trace::Text>(trace_.texts.size() - 1);
    }
    return static_cast<trace::Text>(found - trace_.texts.begin());
  }
  void add(std::size_t track, const trace::Event& event) {
    trace_.events.push_back(event);
    tracks_.push_back(track);
  }

  trace::RankTrace trace_{.origin = {}, .texts = {""}, .events = {}};
  std::vector<std::size_t> tracks_;  // by event
};

}  // namespace

void write_predicted_trace(const std::string& path, const Workload& workload,
                           std::span<const PredictedSpan> spans) {
  Events events(workload, spans);
  const trace::Timeline timeline = events.timeline("predicted step of " + workload.name);
  std::ofstream file(path, std::ios::binary);
  (path.ends_with(".json") ? trace::write_chrome : trace::write_perfetto)(file, timeline);
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write " + path);
}

}  // namespace gradwire::cli
