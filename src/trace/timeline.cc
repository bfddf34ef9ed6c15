#include "trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string_view>
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

/// Spans that share rows, in the order in which these are shown.
enum class Group : std::uint8_t { hook, future, operations, preparation, lane };

Group group_of(const Event& event) {
  switch (event.kind) {
    case Kind::operation:
      return Group::operations;
    case Kind::hook:
      return Group::hook;
    case Kind::future:
      return Group::future;
    case Kind::step:
      break;
  }
  return event.number == kNoPiece ? Group::preparation : Group::lane;
}

std::string name_of(Group group, std::uint8_t lane, std::size_t row) {
  if (group == Group::lane) return fmt::format("lane {}", lane);
  constexpr std::string_view kNames[] = {"hook", "future", "operations", "preparation"};
  const std::string name(kNames[static_cast<std::size_t>(group)]);
  return row == 0 ? name : fmt::format("{} {}", name, row + 1);
}

/// Puts each span, in the order of their begins, into the first row in which nothing overlaps it.
std::vector<std::vector<Span>> apart(std::span<const Span> spans) {
  using Busy = std::pair<std::int64_t, std::size_t>;  // until then; a row
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free;
  std::vector<std::vector<Span>> rows;
  for (const Span& span : spans) {
    for (; !busy.empty() && busy.top().first <= span.begin_ns; busy.pop()) {
      free.push(busy.top().second);
    }
    if (free.empty()) {
      free.push(rows.size());
      rows.emplace_back();
    }
    const std::size_t row = free.top();
    free.pop();
    rows[row].push_back(span);
    busy.emplace(span.end_ns, row);
  }
  return rows;
}

std::vector<Row> rows_of(const RankTrace& trace, std::int64_t shift) {
  std::map<std::pair<Group, std::uint8_t>, std::vector<Span>> groups;  // steps of pieces: by lane
  for (const Event& event : trace.events) {
    const Group group = group_of(event);
    const std::uint8_t lane = group == Group::lane ? event.lane : 0;
    groups[{group, lane}].push_back({&event, event.begin_ns + shift, event.end_ns + shift});
  }
  std::vector<Row> rows;
  for (auto& [key, spans] : groups) {
    std::ranges::stable_sort(spans, {}, &Span::begin_ns);
    std::size_t row = 0;
    for (auto& found : apart(spans)) {
      rows.push_back({name_of(key.first, key.second, row++), std::move(found)});
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
void each_message(std::span<CommunicatorRows> ranks, Message direction, Visit visit) {
  for (CommunicatorRows& rank : ranks) {
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

void join_messages(std::span<CommunicatorRows> ranks, std::uint64_t& messages) {
  std::map<std::uint32_t, std::set<std::uint64_t>> whole;
  for (const CommunicatorRows& rank : ranks)
    whole[rank.trace->origin.rank] = whole_pieces(*rank.trace);
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

/// Ranks of a group that left nothing, as ranges of which the name of the group is the end.
void add_missing(std::vector<std::string>& missing, Traces group, const std::string& name) {
  std::uint64_t next = 0;
  const auto skip_to = [&](std::uint64_t rank) {
    if (rank == next + 1) missing.push_back(fmt::format("rank {}{}", next, name));
    if (rank > next + 1) missing.push_back(fmt::format("ranks {} to {}{}", next, rank - 1, name));
  };
  for (const RankTrace& trace : group) {  // a rank may be there twice, if files were copied
    skip_to(trace.origin.rank);
    next = trace.origin.rank + std::uint64_t{1};
  }
  skip_to(group.front().origin.size);
}

std::uint64_t number_in_job(const Origin& origin) {
  return origin.job_rank < 0 ? origin.rank : static_cast<std::uint64_t>(origin.job_rank);
}

/// What the ranks of one communicator did, in the order of their traces.
std::vector<CommunicatorRows> rows_of(Traces group, const std::string& name) {
  std::vector<CommunicatorRows> ranks;
  for (const RankTrace& trace : group) {
    const std::string own =
        name.empty() ? ""
                     : fmt::format("{}, rank {} of {}", name, trace.origin.rank, trace.origin.size);
    ranks.push_back({&trace, own, rows_of(trace, shift_of(trace, group.front()))});
  }
  return ranks;
}

using Communicators = std::vector<CommunicatorRows>;

std::vector<RankRows> named(std::map<std::uint64_t, Communicators>&& by_rank) {
  std::uint64_t last = 0;
  for (const auto& [rank, communicators] : by_rank) {
    last = std::max(last, rank);
    for (const CommunicatorRows& each : communicators) {
      last = std::max(last, std::uint64_t{each.trace->origin.size} - 1);
    }
  }
  const std::size_t digits = std::to_string(last).size();  // Perfetto orders ranks by their names
  std::vector<RankRows> ranks;
  for (auto& [rank, communicators] : by_rank) {
    ranks.push_back({fmt::format("rank {:0{}}", rank, digits), std::move(communicators)});
  }
  return ranks;
}

}  // namespace

Timeline join(Traces traces) {
  Timeline timeline;
  const std::vector<Traces> groups = by_communicator(traces);
  std::map<std::uint64_t, Communicators> by_rank;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const bool only = groups.size() == 1;
    Communicators ranks = rows_of(groups[i], only ? "" : fmt::format("group {}", i + 1));
    join_messages(ranks, timeline.messages);
    for (CommunicatorRows& rank : ranks) {
      by_rank[number_in_job(rank.trace->origin)].push_back(std::move(rank));
    }
    const std::uint32_t size = groups[i].front().origin.size;
    add_missing(timeline.missing, groups[i],
                only ? "" : fmt::format(" of {} (group {})", size, i + 1));
  }
  timeline.ranks = named(std::move(by_rank));
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
