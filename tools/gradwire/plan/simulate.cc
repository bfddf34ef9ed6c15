// `gradwire simulate`: a step of training on a cluster that one does not have.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "gradwire/error.h"
#include "plan/planning_input.h"
#include "plan/predicted_trace.h"
#include "plan/prediction.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr std::uint32_t kMostRanks = kMostHosts * kMostRanksPerHost;
constexpr const char* kResourceNames[] = {"codecs", "second device", "inside", "sending",
                                          "receiving"};

struct Options {
  PlanningInput input;
  std::uint32_t ranks = 0;
  std::string plan, way;  ///< one of them, or none: what the planner chooses
  std::string trace;
  bool json = false;
};

Cluster cluster_of(std::uint32_t ranks, std::uint32_t ranks_per_host) {
  if (ranks % ranks_per_host != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ranks are not hosts with {} each: give --ranks a multiple of "
                            "--ranks-per-host",
                            ranks, ranks_per_host));
  }
  return {.hosts = ranks / ranks_per_host, .ranks_per_host = ranks_per_host};
}

/// Which ways tensors take on clusters of several sizes.
class Ways {
 public:
  Ways(const Options& options, const Workload& workload, const Costs& costs)
      : workload_(workload), costs_(costs) {
    if (!options.way.empty()) {
      source_ = "all by " + options.way;
      given_.assign(workload.tensors.size(), Way::parse(options.way));
    } else if (!options.plan.empty()) {
      source_ = options.plan;
      given_ = ways_in(options.plan);
    } else {
      selecting_ = selection_options(options.input, costs);
    }
  }

  /// "all by grid:step=0.5", for titles.
  const std::string& source() const { return source_; }

  std::vector<Way> on(const Cluster& cluster) const {
    if (!given_.empty()) return given_;
    std::vector<Way> ways;
    for (const Choice& each : select(workload_, cluster, costs_, selecting_).choices) {
      ways.push_back(each.way());
    }
    return ways;
  }

  /// Throws unless so many ranks can take the ways that are given.
  void check(const Cluster& cluster) const {
    std::set<std::string> routes;
    for (const Way& way : given_) {
      if (way.route.empty() || !routes.insert(way.route).second) continue;
      find_algorithm(way.route, Collective::all_reduce,
                     {.count = cluster.ranks(), .per_host = cluster.ranks_per_host});
    }
  }

 private:
  std::vector<Way> ways_in(const std::string& path) const {
    const Plan plan = Plan::read(path);
    std::vector<std::string> names;
    for (const WorkloadTensor& tensor : workload_.tensors) names.push_back(tensor.name);
    plan.check_matches(names);
    return ways_of(plan, workload_, kLastStep);
  }

  const Workload& workload_;
  const Costs& costs_;
  SelectionOptions selecting_;  // where nobody says how
  std::string source_ = "the planner's choice";
  std::vector<Way> given_;
};

/// A step on so many ranks.
struct Scale {
  Cluster cluster;
  double step_seconds = 0;
  double efficiency = 0;  ///< of what these ranks would do in the same time without exchanges

  double speed_up() const { return efficiency * cluster.ranks(); }
};

/// Doublings of hosts, up to all of them.
std::vector<Scale> scaling(const Cluster& all, const Workload& workload, const Costs& costs,
                           const Ways& ways) {
  std::vector<Scale> scales;
  for (std::uint32_t hosts = 1; hosts < all.hosts; hosts *= 2) {
    scales.push_back({{hosts, all.ranks_per_host}});
  }
  scales.push_back({all});
  Progress progress(scales.size());
  for (Scale& scale : scales) {
    progress.begin_step(fmt::format("{} ranks", scale.cluster.ranks()));
    const std::vector<Way> chosen = ways.on(scale.cluster);
    scale.step_seconds = predict(workload, scale.cluster, costs, chosen).step_seconds;
    scale.efficiency = workload.compute_seconds() / scale.step_seconds;
  }
  return scales;
}

struct Simulation {
  Workload workload;
  Costs costs;
  Cluster cluster;
  std::string ways;  ///< in words
  Prediction prediction;
  std::vector<Scale> scaling;
};

/// Of a step, how long something is busy.
void add_row(TextTable& table, const std::string& name, double seconds, double step) {
  if (seconds == 0) return;
  table.add_row({name, milliseconds(seconds), fmt::format("{:.1f}", 100 * seconds / step)});
}

void print_tables(const Simulation& found) {
  const Prediction& step = found.prediction;
  fmt::print("{}: {} tensors {}, {}; costs: {}\n\n", found.workload.name,
             found.workload.tensors.size(), text_of(found.cluster), found.ways, found.costs.source);
  const auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<28} {:>12}\n", what, value);
  };
  line("a step", milliseconds(step.step_seconds) + " ms");
  line("computing alone", milliseconds(found.workload.compute_seconds()) + " ms");
  line("of it after computing", milliseconds(step.exposed_seconds) + " ms");
  line("a rank sends inside its host", fmt::format("{:.2f} MB", step.bytes_inside / 1e6));
  line("and to other hosts", fmt::format("{:.2f} MB", step.bytes_between / 1e6));
  fmt::print("\n");
  TextTable busy({{"busy", "", Align::left}, {"in a step", "ms"}, {"of it", "%"}});
  add_row(busy, "computing", found.workload.compute_seconds(), step.step_seconds);
  for (std::size_t i = 0; i < kResources; ++i) {
    add_row(busy, kResourceNames[i], step.busy_seconds[i], step.step_seconds);
  }
  print(busy);
  fmt::print("\n");
  TextTable table({{"ranks"}, {"hosts"}, {"step", "ms"}, {"speed-up", "x"}, {"efficiency", "%"}});
  for (const Scale& each : found.scaling) {
    table.add_row({std::to_string(each.cluster.ranks()), std::to_string(each.cluster.hosts),
                   milliseconds(each.step_seconds), fmt::format("{:.1f}", each.speed_up()),
                   fmt::format("{:.1f}", 100 * each.efficiency)});
  }
  print(table);
  print_note("speed-up: over one rank that exchanges nothing, in samples per second");
}

void print_object(const Simulation& found) {
  const Prediction& step = found.prediction;
  Json object;
  object["model"] = found.workload.name;
  object["tensors"] = found.workload.tensors.size();
  object["ranks"] = found.cluster.ranks();
  object["hosts"] = found.cluster.hosts;
  object["ways"] = found.ways;
  object["costs"] = found.costs.source;
  object["predicted_seconds"] = measured(step.step_seconds);
  object["compute_seconds"] = measured(found.workload.compute_seconds());
  object["exposed_seconds"] = measured(step.exposed_seconds);
  object["bytes_inside"] = measured(step.bytes_inside);
  object["bytes_between"] = measured(step.bytes_between);
  object["busy"]["computing"] = measured(found.workload.compute_seconds() / step.step_seconds);
  for (std::size_t i = 0; i < kResources; ++i) {
    object["busy"][kResourceNames[i]] = measured(step.busy_seconds[i] / step.step_seconds);
  }
  for (const Scale& each : found.scaling) {
    object["rows"].push_back({{"ranks", each.cluster.ranks()},
                              {"hosts", each.cluster.hosts},
                              {"predicted_seconds", measured(each.step_seconds)},
                              {"speed_up", measured(each.speed_up())},
                              {"efficiency", measured(each.efficiency)}});
  }
  print_json(object);
}

void run(const Options& options) {
  Simulation found;
  found.cluster = cluster_of(options.ranks, options.input.cluster.ranks_per_host);
  found.workload = workload_of(options.input);
  found.costs = costs_of(options.input);
  const Ways ways(options, found.workload, found.costs);
  ways.check(found.cluster);
  found.ways = ways.source();
  const std::vector<Way> chosen = ways.on(found.cluster);
  found.prediction = predict(found.workload, found.cluster, found.costs, chosen);
  if (!options.trace.empty()) {
    write_predicted_trace(options.trace, found.workload,
                          predicted_spans(found.workload, found.cluster, found.costs, chosen));
  }
  found.scaling = scaling(found.cluster, found.workload, found.costs, ways);
  options.json ? print_object(found) : print_tables(found);
}

}  // namespace

void add_simulate(CLI::App& gradwire) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *gradwire.add_subcommand(
      "simulate", "Predict a step of training on a cluster, and how it scales");
  add_planning_options(command, options->input);
  command.add_option("--ranks", options->ranks, "How many")
      ->required()
      ->check(CLI::Range(1U, kMostRanks));
  command
      .add_option("--ranks-per-host", options->input.cluster.ranks_per_host,
                  "On each host (default: 1)")
      ->check(CLI::Range(1U, kMostRanksPerHost));
  CLI::Option& plan = *command.add_option(
      "--plan", options->plan, "How tensors travel, by a file (default: the planner's choice)");
  command.add_option("--way", options->way, "How all of them travel: 'grid:step=0.5'")
      ->excludes(&plan)
      ->excludes(command.get_option("--codec"))
      ->check([](const std::string& way) { return way.empty() ? "a way has a codec" : ""; });
  plan.excludes(command.get_option("--codec"));
  command.add_option("--trace", options->trace,
                     "Write the step's timeline, for ui.perfetto.dev; .json for Chrome");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire simulate --model llama:7b --ranks 1024 --ranks-per-host 8 --link 100gbit\n"
      "  gradwire simulate --model vgg16 --ranks 64 --link 10gbit --way grid:step=0.5\n"
      "  gradwire simulate --workload model.json --ranks 32 --costs costs.json --plan plan.json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
