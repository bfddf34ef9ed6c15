#include "trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

namespace gradwire::trace {
namespace {

using Traces = std::span<const RankTrace>;

/// The ranks of one communicator that left a trace.
std::vector<Traces> by_communicator(Traces traces) {
  std::vector<Traces> groups;
  while (!traces.empty()) {
    const std::uint64_t communicator = traces.front().origin.communicator;
    const auto end = std::ranges::find_if(
        traces, [&](const RankTrace& trace) { return trace.origin.communicator != communicator; });
    const auto count = static_cast<std::size_t>(end - traces.begin());
    groups.push_back(traces.first(count));
    traces = traces.subspan(count);
  }
  return groups;
}

/// What makes a rank's times those of rank 0's clock since 1970. Of wall clocks, the first rank's
/// counts for all: those of hosts may differ by more than messages take.
std::int64_t shift_of(const RankTrace& trace, const RankTrace& first) {
  return first.unix_minus_steady_ns + first.origin.clock_offset_ns - trace.origin.clock_offset_ns;
}

std::string name_of(Kind kind, std::size_t row) {
  switch (kind) {
    case Kind::operation:
      return row == 0 ? "operations" : fmt::format("operations {}", row + 1);
    case Kind::hook:
      return row == 0 ? "hook" : fmt::format("hook {}", row + 1);
    case Kind::future:
      return row == 0 ? "future" : fmt::format("future {}", row + 1);
    case Kind::step:
      break;
  }
  return fmt::format("lane {}", row);
}

/// Puts a span into the first row in which nothing overlaps it.
void put(std::vector<std::vector<Span>>& rows, const Span& span) {
  const auto free = std::ranges::find_if(
      rows, [&](const auto& row) { return row.empty() || row.back().end_ns <= span.begin_ns; });
  (free == rows.end() ? rows.emplace_back() : *free).push_back(span);
}

std::vector<Row> rows_of(const RankTrace& trace, std::int64_t shift) {
  std::map<std::pair<Kind, std::uint8_t>, std::vector<Span>> spans;  // steps: by lane
  for (const Event& event : trace.events) {
    const std::uint8_t lane = event.kind == Kind::step ? event.lane : 0;
    spans[{event.kind, lane}].push_back({&event, event.begin_ns + shift, event.end_ns + shift});
  }
  std::vector<Row> rows;
  for (const Kind kind : {Kind::hook, Kind::future, Kind::operation, Kind::step}) {
    for (auto& [key, all] : spans) {
      if (key.first != kind) continue;
      std::ranges::stable_sort(all, {}, &Span::begin_ns);
      std::vector<std::vector<Span>> apart;
      for (const Span& span : all) put(apart, span);
      for (std::size_t i = 0; i < apart.size(); ++i) {
        rows.push_back({name_of(kind, kind == Kind::step ? key.second : i), std::move(apart[i])});
      }
    }
  }
  return rows;
}

/// Pieces of which nothing was overwritten: their messages can be counted.
std::set<std::uint64_t> whole_pieces(const RankTrace& trace) {
  std::set<std::uint64_t> pieces;
  for (const Event& event : trace.events) {
    if (event.kind == Kind::step && event.at == 0) pieces.insert(event.number);
  }
  return pieces;
}

/// Sender, receiver and piece. Messages that have these in common arrive in the order in which they
/// were sent.
using Stream = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;

/// Visits the messages of all ranks, each rank's in the order of its schedule.
template <class Visit>
void each_message(std::span<RankRows> ranks, Message direction, Visit visit) {
  for (RankRows& rank : ranks) {
    const std::uint32_t me = rank.trace->origin.rank;
    for (Row& row : rank.rows) {
      for (Span& span : row.spans) {
        const Event& event = *span.event;
        if (event.message != direction || event.state != State::done) continue;
        const bool sent = direction == Message::sent;
        visit(Stream{sent ? me : event.peer, sent ? event.peer : me, event.number}, span);
      }
    }
  }
}

void join_messages(std::span<RankRows> ranks, std::uint64_t& messages) {
  std::map<std::uint32_t, std::set<std::uint64_t>> whole;
  for (const RankRows& rank : ranks) whole[rank.trace->origin.rank] = whole_pieces(*rank.trace);
  std::map<Stream, std::deque<Span*>> under_way;
  each_message(ranks, Message::sent,
               [&](const Stream& stream, Span& span) { under_way[stream].push_back(&span); });
  each_message(ranks, Message::received, [&](const Stream& stream, Span& span) {
    const auto [from, to, piece] = stream;
    auto& sent = under_way[stream];
    if (sent.empty() || !whole[from].contains(piece) || !whole[to].contains(piece)) return;
    span.message = sent.front()->message = ++messages;
    sent.pop_front();
  });
}

}  // namespace

Timeline join(Traces traces) {
  Timeline timeline;
  const std::vector<Traces> groups = by_communicator(traces);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t before = timeline.ranks.size();
    for (const RankTrace& trace : groups[i]) {
      const std::string group =
          groups.size() == 1 ? "" : fmt::format(" of {} (group {})", trace.origin.size, i + 1);
      timeline.ranks.push_back({&trace, fmt::format("rank {}{}", trace.origin.rank, group),
                                rows_of(trace, shift_of(trace, groups[i].front()))});
    }
    join_messages(std::span(timeline.ranks).subspan(before), timeline.messages);
  }
  return timeline;
}

std::string title_of(const RankTrace& trace, const Event& event) {
  std::string title = trace.texts[event.what];
  if (const std::string& layer = trace.texts[event.layer]; !layer.empty()) title += " " + layer;
  if (event.more_layers > 0) title += fmt::format(" and {} more", event.more_layers);
  if (event.state == State::unfinished) title += " (unfinished)";
  return title;
}

}  // namespace gradwire::trace
