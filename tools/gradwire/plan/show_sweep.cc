#include "plan/show_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "plan/sweep.h"
#include "plan/sweep_picture.h"
#include "terminal/json_output.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr double kShown = 0.005;  // of the gradients: what does not round to 0 %

/// A sweep with what it is of.
struct Report {
  std::string model;
  std::string where;  ///< "on 4 hosts with 1 rank each"
  std::string costs;
  Sweep sweep;
  std::vector<SweepPoint> points;
  std::vector<CodecRange> ranges;
};

std::string name_of(const std::string& codec) { return codec == "none" ? "exact" : codec; }

/// What is the same at all points.
std::string where_of(const PlanningInput& input, const std::string& key) {
  const Cluster& cluster = input.cluster;
  if (key == "hosts")
    return fmt::format("with {} per host", counted(cluster.ranks_per_host, "rank"));
  if (key == "ranks-per-host") return "on " + counted(cluster.hosts, "host");
  return text_of(cluster);
}

Report report_of(const PlanningInput& input, const std::string& text) {
  Report report;
  report.sweep = parse_sweep(text);
  report.model = workload_of(input).name;
  report.where = where_of(input, report.sweep.key);
  if (report.sweep.key != "link" && !input.link.empty()) {
    report.where += ", links of " + input.link;
  }
  report.costs = costs_of(input).source;
  report.points = plan_points(input, report.sweep);
  report.ranges = ranges_of(report.points);
  return report;
}

std::string shares_text(const SweepPoint& point) {
  std::vector<CodecShare> codecs = point.codecs;
  std::ranges::stable_sort(codecs, std::greater<>(), &CodecShare::of_bytes);
  std::vector<std::string> texts;
  for (const CodecShare& share : codecs) {
    if (share.of_bytes < kShown) continue;
    texts.push_back(fmt::format("{:.0f} % {}", 100 * share.of_bytes, name_of(share.codec)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void print_table(const Report& report) {
  fmt::print("{} {}; costs: {}\n\n", report.model, report.where, report.costs);
  TextTable table({{report.sweep.key, report.sweep.key == "step" ? "ms" : ""},
                   {"plan", "ms"},
                   {"all exact", "ms"},
                   {"all compressed", "ms"},
                   {"bound", "ms"},
                   {"gain", "x"},
                   {"of the gradients", "", Align::left}});
  for (const SweepPoint& point : report.points) {
    table.add_row({report.sweep.text_of(point.value), milliseconds(point.predicted_seconds),
                   milliseconds(point.baselines.plain_seconds),
                   milliseconds(point.baselines.all_compressed_seconds),
                   milliseconds(point.baselines.bound_seconds),
                   ratio(point.baselines.plain_seconds, point.predicted_seconds),
                   shares_text(point)});
  }
  print(table);
  for (const CodecRange& range : report.ranges) {
    print_note(fmt::format("{} pays from {} to {}", range.codec, report.sweep.text_of(range.from),
                           report.sweep.text_of(range.to)));
  }
  if (report.ranges.empty()) print_note("no codec pays anywhere here");
}

void print_object(const Report& report) {
  Json object;
  object["model"] = report.model;
  object["costs"] = report.costs;
  object["sweep"] = report.sweep.key;
  object["rows"] = Json::array();
  for (const SweepPoint& point : report.points) {
    Json row;
    row[report.sweep.key] = report.sweep.text_of(point.value);
    row["value"] = point.value;
    row["predicted_seconds"] = measured(point.predicted_seconds);
    row["plain_seconds"] = measured(point.baselines.plain_seconds);
    row["all_compressed_seconds"] = measured(point.baselines.all_compressed_seconds);
    row["bound_seconds"] = measured(point.baselines.bound_seconds);
    row["compute_seconds"] = measured(point.compute_seconds);
    for (const CodecShare& share : point.codecs) {
      row["codecs"].push_back({{"codec", share.codec},
                               {"tensors", share.tensors},
                               {"of_bytes", measured(share.of_bytes)}});
    }
    object["rows"].push_back(std::move(row));
  }
  object["pays"] = Json::array();
  for (const CodecRange& range : report.ranges) {
    object["pays"].push_back({{"codec", range.codec},
                              {"from", report.sweep.text_of(range.from)},
                              {"to", report.sweep.text_of(range.to)}});
  }
  print_json(object);
}

}  // namespace

void show_sweep(const PlanningInput& input, const SweepOptions& options) {
  const Report report = report_of(input, options.sweep);
  if (!options.picture.empty()) {
    const SweepTitles titles{
        fmt::format("{} {}: where compression begins to pay", report.model, report.where),
        "predicted by gradwire plan; costs: " + report.costs};
    write_text(options.picture, draw_sweep(titles, report.sweep, report.points));
  }
  options.json ? print_object(report) : print_table(report);
}

}  // namespace gradwire::cli
