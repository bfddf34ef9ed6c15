#include "trace/chrome_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>

namespace gradwire::trace {
namespace {

// Kineto counts from the last multiple of a quarter of a year, so that microseconds fit a double.
constexpr std::int64_t kKinetoIntervalNs = std::int64_t{7'889'238} * 1'000'000'000;
constexpr std::uint32_t kFirstPid = 10'000'000;  // Linux has at most 4194304

std::string quoted(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::operation:
      return "operation";
    case Kind::hook:
      return "hook";
    case Kind::future:
      return "future";
    case Kind::step:
      break;
  }
  return "step";
}

std::int64_t base_of(const Timeline& timeline) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const RankRows& rank : timeline.ranks) {
    for (const CommunicatorRows& each : rank.communicators) {
      for (const Row& row : each.rows) first = std::min(first, row.spans.front().begin_ns);
    }
  }
  return first / kKinetoIntervalNs * kKinetoIntervalNs;
}

class Writer {
 public:
  Writer(std::ostream& out, std::int64_t base_ns) : out_(out), base_ns_(base_ns) {
    out_ << fmt::format(
        "{{\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": {}, \"traceEvents\": [", base_ns);
  }
  ~Writer() { out_ << "\n]}\n"; }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void rank(const RankRows& rank) {
    pid_ = kFirstPid + ranks_;
    describe("process_name", 0, quoted("gradwire " + rank.name));
    put(R"("ph":"M","name":"process_sort_index","tid":0,"args":{{"sort_index":{}}})", ranks_);
    ++ranks_;
    std::size_t thread = 0;
    for (const CommunicatorRows& each : rank.communicators) {
      const std::string group = each.name.empty() ? "" : each.name + ": ";
      for (const Row& row : each.rows) {
        describe("thread_name", thread, quoted(group + row.name));
        for (const Span& span : row.spans) write(*each.trace, thread, span);
        ++thread;
      }
    }
  }

 private:
  /// One event of this rank's process, with these fields.
  template <class... Fields>
  void put(fmt::format_string<Fields...> fields, Fields&&... values) {
    out_ << (std::exchange(first_, false) ? "\n" : ",\n") << "{\"pid\":" << pid_ << ','
         << fmt::format(fields, std::forward<Fields>(values)...) << '}';
  }
  void describe(std::string_view what, std::size_t row, const std::string& name) {
    put(R"("ph":"M","name":"{}","tid":{},"args":{{"name":{}}})", what, row, name);
  }
  double microseconds(std::int64_t time_ns) const {
    return static_cast<double>(time_ns - base_ns_) / 1000;
  }

  void write(const RankTrace& trace, std::size_t row, const Span& span) {
    const Event& event = *span.event;
    const bool is_step = event.kind == Kind::step;
    std::string more;
    if (!is_step) more += fmt::format(",\"step\":{}", event.number);
    if (is_step && event.number != kNoPiece) more += fmt::format(",\"piece\":{}", event.number);
    if (event.message != Message::none) more += fmt::format(",\"peer\":{}", event.peer);
    put(R"("ph":"X","cat":"{}","name":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"bytes":{}{}}})",
        name_of(event.kind), quoted(title_of(trace, event)), row, microseconds(span.begin_ns),
        static_cast<double>(span.end_ns - span.begin_ns) / 1000, event.bytes, more);
    if (span.message == 0) return;
    const bool sent = event.message == Message::sent;
    // Receiving begins with waiting, before the message is sent: the arrow goes to its end, of
    // which the last nanosecond is the last that belongs to the span.
    const std::int64_t at = sent ? span.begin_ns : std::max(span.begin_ns, span.end_ns - 1);
    put(R"("ph":"{}","bp":"e","cat":"message","name":"message","id":{},"tid":{},"ts":{:.3f})",
        sent ? "s" : "f", span.message, row, microseconds(at));
  }

  std::ostream& out_;
  const std::int64_t base_ns_;
  std::uint32_t pid_ = 0;
  std::uint32_t ranks_ = 0;
  bool first_ = true;
};

}  // namespace

void write_chrome(std::ostream& out, const Timeline& timeline) {
  Writer writer(out, base_of(timeline));
  for (const RankRows& rank : timeline.ranks) writer.rank(rank);
}

}  // namespace gradwire::trace
