// `gradwire trace`: the traces that ranks have left, as one file for a viewer.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "subcommands.h"
#include "trace/chrome_writer.h"
#include "trace/perfetto_writer.h"

namespace gradwire::cli {
namespace {

constexpr int kIncomplete = 1;

struct Options {
  std::string folder;
  std::string output;
  std::string format;  // empty: what the output's name ends with says

  bool chrome() const { return format.empty() ? output.ends_with(".json") : format == "chrome"; }
};

struct Totals {
  std::size_t spans = 0;
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  std::int64_t end_ns = std::numeric_limits<std::int64_t>::min();

  double seconds() const { return spans == 0 ? 0 : static_cast<double>(end_ns - begin_ns) / 1e9; }
};

void add(Totals& totals, const trace::CommunicatorRows& rank) {
  for (const trace::Row& row : rank.rows) {
    totals.spans += row.spans.size();
    for (const trace::Span& span : row.spans) {
      totals.begin_ns = std::min(totals.begin_ns, span.begin_ns);
      totals.end_ns = std::max(totals.end_ns, span.end_ns);
    }
  }
}

Totals totals_of(const trace::Timeline& timeline) {
  Totals totals;
  for (const trace::RankRows& rank : timeline.ranks) {
    for (const trace::CommunicatorRows& each : rank.communicators) add(totals, each);
  }
  return totals;
}

void print_lost(const std::string& name, const trace::RankTrace& trace) {
  if (trace.events.empty()) {
    fmt::print("{} left an empty trace: it was killed, or exchanged nothing\n", name);
  }
  if (trace.overwritten == 0) return;
  fmt::print("{} has its last {} events; {} earlier ones were overwritten\n", name,
             trace.events.size(), trace.overwritten);
}

void print_lost(const trace::Timeline& timeline) {
  for (const trace::RankRows& rank : timeline.ranks) {
    for (const trace::CommunicatorRows& each : rank.communicators) {
      const std::string group = each.name.empty() ? "" : fmt::format(" ({})", each.name);
      print_lost(rank.name + group, *each.trace);
    }
  }
}

void warn(const std::string& sentence) { fmt::print(stderr, "gradwire: {}\n", sentence); }

/// Whether all that this rank did in some communicators was done before it began in others.
bool falls_apart(const trace::RankRows& rank) {
  std::vector<Totals> times;
  for (const trace::CommunicatorRows& each : rank.communicators) {
    if (!each.rows.empty()) add(times.emplace_back(), each);
  }
  std::ranges::sort(times, {}, &Totals::begin_ns);
  std::int64_t end_ns = times.empty() ? 0 : times.front().end_ns;
  for (const Totals& each : times) {
    if (each.begin_ns > end_ns) return true;
    end_ns = std::max(end_ns, each.end_ns);
  }
  return false;
}

void run(const Options& options) {
  const trace::TraceFolder folder = trace::read_traces(options.folder);
  std::ranges::for_each(folder.left_out, warn);
  if (folder.traces.empty()) {
    throw Error(ErrorCode::bad_frame, "no trace in " + options.folder + " can be read");
  }
  const trace::Timeline timeline = trace::join(folder.traces);
  std::ofstream file(options.output, std::ios::binary);
  (options.chrome() ? trace::write_chrome : trace::write_perfetto)(file, timeline);
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write " + options.output);
  print_lost(timeline);
  const Totals totals = totals_of(timeline);
  fmt::print("{}: {} rank{}, {} spans, {} messages, {:.3f} s; open it at https://ui.perfetto.dev\n",
             options.output, timeline.ranks.size(), timeline.ranks.size() == 1 ? "" : "s",
             totals.spans, timeline.messages, totals.seconds());
  if (falls_apart(timeline.ranks.front())) {
    warn(
        fmt::format("{} ended in some groups before it began in others; if {} has the traces of "
                    "several jobs, give each a folder of its own",
                    timeline.ranks.front().name, options.folder));
  }
  for (const std::string& ranks : timeline.missing) {
    warn(fmt::format("{} left no trace that can be read in {}; were all hosts' files copied here?",
                     ranks, options.folder));
  }
  if (!folder.left_out.empty() || !timeline.missing.empty()) throw CLI::RuntimeError(kIncomplete);
}

}  // namespace

void add_trace(CLI::App& gradwire) {
  auto options = std::make_shared<Options>();
  CLI::App& command =
      *gradwire.add_subcommand("trace", "Join the traces of all ranks into one file, on one clock");
  command
      .add_option("folder", options->folder,
                  "Where ranks left their traces; from other hosts, copy them here")
      ->required();
  command.add_option("-o,--output", options->output, "The file to write")->required();
  command
      .add_option("--format", options->format,
                  "chrome: JSON on the clock of torch.profiler's traces (default for .json), or "
                  "perfetto (default for all others)")
      ->check(CLI::IsMember({"perfetto", "chrome"}));
  command.footer(
      "Joins what can be read. The exit code is 1 if a file is damaged or a copy, or a rank left\n"
      "none: the others are in the output, and stderr says what is missing.\n\n"
      "Examples:\n"
      "  gradwire run --trace run/ --nproc-per-node 4 train.py\n"
      "  gradwire trace run/ -o job.pftrace\n"
      "  gradwire trace run/ -o job.json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
