// `gradwire bench predict`: steps of training as the planner predicts them, beside measured ones.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/training_run.h"
#include "calibrate/exchange_times.h"
#include "gradwire/error.h"
#include "machine/measure.h"
#include "plan/buckets.h"
#include "plan/calibration.h"
#include "plan/plan_reader.h"
#include "plan/prediction.h"
#include "plan/resources.h"
#include "run/interruption.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr const char* kMemory = "memory";
constexpr const char* kDefaultCases[] = {
    "vgg/2/memory/none",
    "vgg/2/memory/grid:step=0.5",
    "vgg/2/1gbit/none",
    "vgg/2/1gbit/grid:step=0.5",
    "vgg/2/100mbit/uniform:bits=4,bucket=128",
    "vgg/4/1gbit/uniform:bits=4,bucket=128",
    "transformer/2/none/grid:step=0.5",
    "transformer/2/10gbit/uniform:bits=4,bucket=128",
    "transformer/2/1gbit/none",
    "transformer/4/1gbit/grid:step=0.5",
    "words/2/1gbit/grid:step=0.5",
    "words/2/10gbit/none",
    "resnet/2/memory/uniform:bits=4,bucket=128",
    "resnet/2/100mbit/grid:step=0.5",
    "resnet/2/1gbit/none",
};

struct Options {
  std::vector<std::string> cases;
  std::string costs;
  unsigned steps = 40;
  unsigned repeat = 1;
  std::string python;
  bool json = false;
};

/// What is trained.
struct Case {
  std::string model;
  unsigned ranks = 0;
  std::string link;  ///< between hosts with one rank each, or `kMemory`: ranks of this host
  std::string codec;
};

Case parse_case(const std::string& text) {
  Case parsed;
  std::size_t at = 0;
  const auto next = [&] {
    const std::size_t end = text.find('/', at);
    if (end == std::string::npos) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' is no case: give MODEL/RANKS/LINK/CODEC, as in "
                              "vgg/2/1gbit/grid:step=0.5",
                              text));
    }
    std::string part = text.substr(at, end - at);
    at = end + 1;
    return part;
  };
  parsed.model = next();
  const std::string ranks = next();
  parsed.link = next();
  parsed.codec = text.substr(at);
  const bool digits = !ranks.empty() && ranks.size() < 4 &&
                      ranks.find_first_not_of("0123456789") == std::string::npos;
  parsed.ranks = digits ? static_cast<unsigned>(std::stoul(ranks)) : 0;
  if (parsed.ranks < 2) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' asks for '{}' ranks: give 2 to 999", text, ranks));
  }
  if (parsed.link != kMemory) parse_link_rate(parsed.link);
  Codec::parse(parsed.codec);
  return parsed;
}

RankStage stage_of(const Case& each) {
  return each.link == kMemory ? RankStage::on_this_host(each.ranks)
                              : RankStage::on_hosts(each.ranks, each.link);
}

/// Costs of this machine's codecs, and of links as they are measured here.
class CostsByCase {
 public:
  explicit CostsByCase(Costs machine) : machine_(std::move(machine)) {}

  Costs of(const Case& each) {
    Costs costs = machine_;
    if (each.link != kMemory) costs.between = between(each.link);
    costs.cores = std::thread::hardware_concurrency() / static_cast<double>(each.ranks);
    costs.threads = std::max(1U, codec_threads(static_cast<unsigned>(costs.cores), 0));
    return costs;
  }

 private:
  const LinkCost& between(const std::string& link) {
    auto& known = links_[link];
    if (!known) {
      const auto hosts = RankStage::on_hosts(2, link);
      const MeasuredCodec& exact = machine_.codec(Codec::parse("none"));
      known = link_cost(measure_exchanges(hosts, {"auto", false}).gathers, exact);
    }
    return *known;
  }

  const Costs machine_;
  std::map<std::string, std::optional<LinkCost>> links_;
};

/// The step of a training, by what it computes and how its gradients travel.
double predicted_seconds(const Json& run, const Case& each, const Costs& costs) {
  const Workload workload = parse_workload(run.at("workload").dump());
  const Plan plan = Plan::parse(run.at("plan").dump());
  const bool in_memory = each.link == kMemory;
  const Cluster cluster{.hosts = in_memory ? 1 : each.ranks,
                        .ranks_per_host = in_memory ? each.ranks : 1};
  return predict(in_buckets(workload), cluster, costs, ways_of(plan, workload, kLastStep))
      .step_seconds;
}

Json row_of(const Case& each, const std::vector<Json>& runs, const Costs& costs) {
  Timings measured_steps, predicted_steps, computing;
  for (const Json& run : runs) {
    measured_steps.add(run["step_seconds"]);
    predicted_steps.add(predicted_seconds(run, each, costs));
    computing.add(run["compute_seconds"]);
  }
  const double step = measured_steps.median();
  Json row;
  row["model"] = each.model;
  row["ranks"] = each.ranks;
  row["link"] = each.link;
  row["codec"] = each.codec;
  row["compute_seconds"] = measured(computing.median());
  row["predicted_seconds"] = measured(predicted_steps.median());
  row["measured_seconds"] = measured(step);
  row["measured_seconds_min"] = measured(measured_steps.fastest());
  row["measured_seconds_max"] = measured(measured_steps.slowest());
  row["error"] = measured(predicted_steps.median() / step - 1);
  return row;
}

Json report_of(const Json& rows, const Costs& machine) {
  Timings errors;
  for (const Json& row : rows) errors.add(std::abs(row["error"].get<double>()));
  Json report;
  report["costs"] = machine.source;
  report["rows"] = rows;
  report["median_error"] = measured(errors.median());
  report["worst_error"] = measured(errors.slowest());
  return report;
}

void show_as_table(const Json& report) {
  TextTable table({{"model", "", Align::left},
                   {"ranks"},
                   {"link", "", Align::left},
                   {"codec", "", Align::left},
                   {"compute", "ms"},
                   {"predicted", "ms"},
                   {"measured", "ms"},
                   {"from", "ms"},
                   {"to", "ms"},
                   {"error", "%"}});
  const auto milliseconds = [](const Json& seconds) {
    return fmt::format("{:.1f}", 1e3 * seconds.get<double>());
  };
  for (const Json& row : report["rows"]) {
    table.add_row({row["model"].get<std::string>(), std::to_string(row["ranks"].get<unsigned>()),
                   row["link"].get<std::string>(), row["codec"].get<std::string>(),
                   milliseconds(row["compute_seconds"]), milliseconds(row["predicted_seconds"]),
                   milliseconds(row["measured_seconds"]), milliseconds(row["measured_seconds_min"]),
                   milliseconds(row["measured_seconds_max"]),
                   fmt::format("{:+.1f}", 100 * row["error"].get<double>())});
  }
  print(table);
  print_note(
      fmt::format("\nWithout their signs, errors have a median of {:.1f} % and are {:.1f} % "
                  "at worst. Codecs: {}.",
                  100 * report["median_error"].get<double>(),
                  100 * report["worst_error"].get<double>(), report["costs"].get<std::string>()));
}

void run(const Options& options) {
  std::vector<std::string> texts = options.cases;
  if (texts.empty()) texts.assign(std::begin(kDefaultCases), std::end(kDefaultCases));
  std::vector<Case> cases;
  for (const std::string& text : texts) cases.push_back(parse_case(text));
  const Costs machine = load_costs(options.costs);
  const Interruption interruption;
  CostsByCase costs(machine);
  TrainingRuns trainings;
  Progress progress(cases.size() * options.repeat);
  std::vector<std::vector<Json>> runs(cases.size());
  std::vector<Costs> costs_of;
  for (unsigned round = 0; round < options.repeat; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      progress.begin_step(texts[i]);
      if (round == 0) costs_of.push_back(costs.of(cases[i]));
      runs[i].push_back(trainings.run(stage_of(cases[i]),
                                      {.model = cases[i].model,
                                       .method = cases[i].codec,
                                       .steps = options.steps,
                                       .link = cases[i].link,
                                       .python = options.python},
                                      [](const Json&) {}));
    }
  }
  Json rows = Json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    rows.push_back(row_of(cases[i], runs[i], costs_of[i]));
  }
  const Json report = report_of(rows, machine);
  options.json ? print_json(report) : show_as_table(report);
}

}  // namespace

void add_bench_predict(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *bench.add_subcommand(
      "predict", "Train models on test hosts, and compare their steps with predicted ones");
  command
      .add_option("--case", options->cases,
                  "MODEL/RANKS/LINK/CODEC; repeat for several. LINK is a rate, none, or memory for "
                  "ranks of this host (default: 15 of them)")
      ->allow_extra_args(false);
  command.add_option("--costs", options->costs, "What codecs cost here: a file of calibrate")
      ->required()
      ->type_name("FILE");
  command.add_option("--steps", options->steps, "Of each training (default: 40)")
      ->check(CLI::Range(10U, 100000U));
  command.add_option("--repeat", options->repeat, "Trainings of each case, in turns (default: 1)")
      ->check(CLI::Range(1U, 100U));
  command.add_option("--python", options->python, "Python that has torch");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire calibrate -o costs.json && gradwire bench predict --costs costs.json\n"
      "  gradwire bench predict --costs costs.json --case lstm/2/1gbit/grid:step=0.5 --repeat 3\n"
      "\n"
      "A prediction takes when gradients are ready from passes of the same training in which "
      "nothing is\n"
      "exchanged, and links from exchanges between two test hosts.");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
