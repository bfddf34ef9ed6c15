// `gradwire bench plan`: how long the planner takes to select, and how good what it selects is.
//
// On the models, compressors and testbeds of ByteComp's paper, by forecasts. Beside the selected
// step stand those with all tensors exact, with all compressed the same way, with the five options
// of the paper's public code, with codecs that take no time (the paper's bound), and the least that
// any selection could have.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collective/option.h"
#include "machine/measure.h"
#include "plan/cost_presets.h"
#include "plan/models.h"
#include "plan/selection.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

struct PaperModel {
  const char* name;
  const char* testbed;  // on which the paper shows it
  double milliseconds;  // that its authors' selection takes
};
constexpr PaperModel kModels[] = {{"vgg16", "testbed-b", 17},  {"resnet101", "testbed-b", 179},
                                  {"ugatit", "testbed-a", 84}, {"bert-base", "testbed-a", 125},
                                  {"gpt2", "testbed-a", 99},   {"lstm", "testbed-b", 1}};
constexpr const char* kCompressors[] = {"randomk:density=0.01", "topk:density=0.01", "sign"};
constexpr Cluster kPaperCluster{.hosts = 8, .ranks_per_host = 8};

// The five options of the public code: exact, cast to fp16, compressed between hosts or inside them
// as well, and between hosts on the other device.
constexpr const char* kFiveOptions[] = {
    "inside.reduce_scatter-between.all_reduce-inside.all_gather",
    "inside.reduce_scatter-encode-between.all_gather-decode-inside.all_gather",
    "encode-inside.all_to_all-decode-encode-between.all_to_all-decode-encode-between.all_gather-"
    "inside.all_gather-decode"};

// A job far larger than the paper's.
constexpr Cluster kLargeCluster{.hosts = 128, .ranks_per_host = 8};
constexpr std::size_t kLargeTensors = 1000;
constexpr const char* kLargeTestbed = "testbed-b";

struct Options {
  std::string testbed;
  unsigned repeat = 15;
  bool json = false;
};

/// Both: one device's and two devices' options are counted once in a run.
struct OptionCounts {
  std::size_t one = all_options(1).size();
  std::size_t two = all_options(2).size();

  std::size_t of(const Costs& costs) const { return costs.has_other_device() ? two : one; }
};

struct Row {
  std::string model, testbed, compressor;
  Cluster cluster;
  std::size_t tensors = 0, options = 0;
  Timings select_seconds{};
  double predicted_seconds = 0, compute_seconds = 0;
  Baselines baselines{};
  double five_options_seconds = 0;
  std::optional<double> paper_milliseconds{};

  double above(double seconds) const { return 100 * (predicted_seconds / seconds - 1); }
};

/// Other programs on the machine count less than by the clock on the wall.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

Row measure(const Workload& workload, const char* testbed, const char* compressor,
            const Cluster& cluster, const OptionCounts& counts, unsigned repeat) {
  const Costs costs = preset_costs(testbed);
  const SelectionOptions options{.codecs = {Codec::parse(compressor), Codec::parse("fp16")}};
  Row row{workload.name, testbed, compressor, cluster, workload.tensors.size(), counts.of(costs)};
  for (unsigned i = 0; i <= repeat; ++i) {
    const double start = thread_seconds();
    row.predicted_seconds = select(workload, cluster, costs, options).step_seconds;
    if (i > 0) row.select_seconds.add(thread_seconds() - start);
  }
  row.compute_seconds = workload.compute_seconds();
  row.baselines = baselines(workload, cluster, costs, options);
  SelectionOptions five = options;
  for (const char* text : kFiveOptions) five.options.push_back(Option::parse(text));
  row.five_options_seconds = select(workload, cluster, costs, five).step_seconds;
  return row;
}

/// Sizes from 2^12 to 2^24 elements, ready within a second.
Workload large_workload() {
  std::mt19937 random(1);
  Workload workload{.name = fmt::format("{} tensors", kLargeTensors),
                    .tensors = {},
                    .forward_seconds = 0.5,
                    .backward_seconds = 1};
  for (std::size_t i = 1; i <= kLargeTensors; ++i) {
    const double exponent = 12 + 12 * static_cast<double>(random()) / 4294967296.0;
    workload.tensors.push_back({fmt::format("layer{}", i),
                                static_cast<std::size_t>(std::exp2(exponent)),
                                static_cast<double>(i) / kLargeTensors});
  }
  return workload;
}

std::vector<Row> measure_all(const Options& options) {
  const OptionCounts counts;
  std::vector<Row> rows;
  for (const PaperModel& model : kModels) {
    const Workload workload = model_workload(model.name, default_step_seconds(model.name));
    const char* testbed = options.testbed.empty() ? model.testbed : options.testbed.c_str();
    for (const char* compressor : kCompressors) {
      rows.push_back(measure(workload, testbed, compressor, kPaperCluster, counts, options.repeat));
      rows.back().paper_milliseconds = model.milliseconds;
    }
  }
  rows.push_back(measure(large_workload(), kLargeTestbed, "sign", kLargeCluster, counts, 3));
  return rows;
}

void show_as_json(const std::vector<Row>& rows, double cpu_share) {
  Json object;
  object["cpu_share"] = measured(cpu_share);
  object["peak_mebibytes"] = measured(peak_mebibytes());
  for (const Row& row : rows) {
    Json json;
    json["model"] = row.model;
    json["testbed"] = row.testbed;
    json["compressor"] = row.compressor;
    json["hosts"] = row.cluster.hosts;
    json["ranks_per_host"] = row.cluster.ranks_per_host;
    json["tensors"] = row.tensors;
    json["options"] = row.options;
    json["select_milliseconds"] = measured(1e3 * row.select_seconds.median());
    json["select_milliseconds_slowest"] = measured(1e3 * row.select_seconds.slowest());
    json["predicted_seconds"] = measured(row.predicted_seconds);
    json["compute_seconds"] = measured(row.compute_seconds);
    json["plain_seconds"] = measured(row.baselines.plain_seconds);
    json["all_compressed_seconds"] = measured(row.baselines.all_compressed_seconds);
    json["five_options_seconds"] = measured(row.five_options_seconds);
    json["bound_seconds"] = measured(row.baselines.bound_seconds);
    json["least_seconds"] = measured(row.baselines.least_seconds);
    json["paper_milliseconds"] = row.paper_milliseconds ? Json(*row.paper_milliseconds) : Json();
    object["rows"].push_back(std::move(json));
  }
  print_json(object);
}

void show_as_table(const std::vector<Row>& rows, double cpu_share, unsigned repeat) {
  TextTable table({{"model", "", Align::left},
                   {"testbed", "", Align::left},
                   {"compressor", "", Align::left},
                   {"select", "ms"},
                   {"paper", "ms"},
                   {"step", "ms"},
                   {"exact", "x step"},
                   {"alike", "x step"},
                   {"five", "x step"},
                   {"bound", "ms"},
                   {"above", "%"},
                   {"least", "ms"},
                   {"above", "%"}});
  for (const Row& row : rows) {
    const auto times = [&](double seconds) {
      return fmt::format("{:.2f}", seconds / row.predicted_seconds);
    };
    const auto milliseconds = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
    table.add_row({row.model, row.testbed, row.compressor,
                   milliseconds(row.select_seconds.median()),
                   row.paper_milliseconds ? fmt::format("{}", *row.paper_milliseconds) : "",
                   milliseconds(row.predicted_seconds), times(row.baselines.plain_seconds),
                   times(row.baselines.all_compressed_seconds), times(row.five_options_seconds),
                   milliseconds(row.baselines.bound_seconds),
                   fmt::format("{:.1f}", row.above(row.baselines.bound_seconds)),
                   milliseconds(row.baselines.least_seconds),
                   fmt::format("{:.1f}", row.above(row.baselines.least_seconds))});
  }
  print(table);
  print_note(fmt::format(
      "\nMedian of {} selections after an untimed one, by the thread's CPU time. Steps are "
      "forecasts, on 8 hosts of 8\nranks, the last row's on {} of {}; exact, alike (all compressed "
      "the same way) and the five options of the paper's\ncode as multiples of the selected step. "
      "The bound has codecs that take no time; less than the least no selection\ntakes with these "
      "costs. Peak memory {:.0f} MiB.",
      repeat, kLargeCluster.hosts, kLargeCluster.ranks_per_host, peak_mebibytes()));
  if (const std::string note = disturbance_note(cpu_share); !note.empty()) print_note(note);
}

void run(const Options& options) {
  const CpuShare share;
  const std::vector<Row> rows = measure_all(options);
  if (options.json) {
    show_as_json(rows, share.share());
  } else {
    show_as_table(rows, share.share(), options.repeat);
  }
}

}  // namespace

void add_bench_plan(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand(
      "plan", "How long selecting ways takes, and how close to the best what it finds is");
  const auto options = std::make_shared<Options>();
  command
      .add_option("--testbed", options->testbed,
                  "All models on testbed-a or testbed-b (default: each where the paper has it)")
      ->check(CLI::IsMember({"testbed-a", "testbed-b"}));
  command.add_option("--repeat", options->repeat, "Selections; the median is shown (default: 15)")
      ->type_name("N")
      ->check(CLI::Range(1U, 100000U));
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench plan\n"
      "  gradwire bench plan --testbed testbed-b --repeat 50 --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
