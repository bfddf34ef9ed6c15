// `gradwire plan`: which way every tensor of a model should take, and what that gains.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "gradwire/error.h"
#include "gradwire/plan.h"
#include "plan/bucket_steps.h"
#include "plan/planning_input.h"
#include "plan/predicted_trace.h"
#include "plan/prediction.h"
#include "plan/show_sweep.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

// Of which one is advised, DDP's own among them.
constexpr std::size_t kBucketMebibytes[] = {25, 1, 5, 10, 50, 100};

struct Options {
  PlanningInput input;
  bool all = false;
  bool json = false;
  std::string output;
  std::string trace;
  std::string sweep, picture;
};

/// Of sizes that DDP's buckets may have, where nobody says which they have.
std::vector<BucketStep> bucket_steps(const PlanningInput& input, const Planned& plan) {
  if (input.bucket_mebibytes > 0 || input.cluster.ranks() == 1) return {};
  return steps_by_bucket(plan.workload, input.cluster, plan.costs,
                         selection_options(input, plan.costs), kBucketMebibytes);
}

/// How a tensor travels, without its route.
std::string codec_of(const Choice& choice) {
  Way way = choice.way();
  way.route.clear();
  return way.text();
}

void print_table(const Options& options, const Planned& plan,
                 const std::vector<BucketStep>& buckets) {
  const double step = plan.selection.step_seconds;
  const auto beside = [&](const char* what, double seconds) {
    const std::string time = milliseconds(seconds);
    fmt::print("  {:<28} {:>9}{}\n", what, time,
               time == "-" ? "" : fmt::format(" ms  {} x", ratio(seconds, step)));
  };
  fmt::print("{}: {} tensors {}; costs: {}\n\n", plan.workload.name, plan.workload.tensors.size(),
             text_of(options.input.cluster), plan.costs.source);
  beside("a step by this plan", step);
  beside("exact, the best way for all", plan.baselines.plain_seconds);
  beside("compressed, the same for all", plan.baselines.all_compressed_seconds);
  beside("if codecs took no time", plan.baselines.bound_seconds);
  beside("computing alone", plan.workload.compute_seconds());
  fmt::print("\n");
  TextTable table({{"tensor", "", Align::left},
                   {"elements"},
                   {"ready", "ms"},
                   {"codec", "", Align::left},
                   {"way", "", Align::left},
                   {"why", "", Align::left}});
  std::size_t small = 0;
  for (std::size_t i = 0; i < plan.selection.choices.size(); ++i) {
    const Choice& choice = plan.selection.choices[i];
    const WorkloadTensor& tensor = plan.workload.tensors[i];
    if (!options.all && choice.reason.starts_with("small")) {
      ++small;
      continue;
    }
    table.add_row({tensor.name, std::to_string(tensor.elements), milliseconds(tensor.ready_seconds),
                   codec_of(choice), name_of(choice.option), choice.reason});
  }
  print(table);
  if (!buckets.empty()) {
    const BucketStep& best = best_of(buckets);
    const BucketStep& usual = buckets.front();
    const std::string other =
        best.mebibytes == usual.mebibytes
            ? ", as usual"
            : fmt::format("; {} has {} ms", usual.mebibytes, milliseconds(usual.step_seconds));
    print_note(
        fmt::format("With DDP's buckets: bucket_cap_mb={} is best, {} ms a step{}. --bucket-mb "
                    "fixes one",
                    best.mebibytes, milliseconds(best.step_seconds), other));
  }
  if (plan.second_device_left_out) {
    print_note(
        "Without the second device of these costs, as gradwire executes no plan that uses it");
  }
  if (small > 0)
    print_note(fmt::format("{} small tensors travel with these; --all shows them", small));
}

void print_object(const Options& options, const Planned& plan,
                  const std::vector<BucketStep>& buckets) {
  Json object;
  object["model"] = plan.workload.name;
  object["hosts"] = options.input.cluster.hosts;
  object["ranks_per_host"] = options.input.cluster.ranks_per_host;
  object["costs"] = plan.costs.source;
  object["predicted_seconds"] = measured(plan.selection.step_seconds);
  object["exposed_seconds"] = measured(plan.selection.exposed_seconds);
  object["plain_seconds"] = measured(plan.baselines.plain_seconds);
  object["all_compressed_seconds"] = measured(plan.baselines.all_compressed_seconds);
  object["bound_seconds"] = measured(plan.baselines.bound_seconds);
  object["compute_seconds"] = measured(plan.workload.compute_seconds());
  object["least_seconds"] = measured(plan.baselines.least_seconds);
  if (!buckets.empty()) object["advised_bucket_mb"] = best_of(buckets).mebibytes;
  for (const BucketStep& each : buckets) {
    object["buckets"].push_back(
        {{"bucket_mb", each.mebibytes}, {"predicted_seconds", measured(each.step_seconds)}});
  }
  for (std::size_t i = 0; i < plan.selection.choices.size(); ++i) {
    const Choice& choice = plan.selection.choices[i];
    const WorkloadTensor& tensor = plan.workload.tensors[i];
    object["tensors"].push_back({{"name", tensor.name},
                                 {"elements", tensor.elements},
                                 {"ready_seconds", measured(tensor.ready_seconds)},
                                 {"way", choice.way().text()},
                                 {"reason", choice.reason}});
  }
  print_json(object);
}

void write_timeline(const Options& options, const Planned& plan) {
  std::vector<Way> ways;
  for (const Choice& choice : plan.selection.choices) ways.push_back(choice.way());
  write_predicted_trace(options.trace, plan.workload,
                        predicted_spans(plan.workload, options.input.cluster, plan.costs, ways));
}

/// A figure is given by its option or varied, not both.
void check_given_once(const CLI::App& command, const std::string& sweep) {
  const std::string key = sweep.substr(0, sweep.find('='));
  const CLI::Option* const option = command.get_option_no_throw("--" + key);
  if (option == nullptr || option->count() == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--{0} and a sweep of {0} do not go together: leave one of them", key));
}

/// A plan holds for layers by their names, of which a trace knows none.
void check_names_known(const Options& options) {
  if (options.output.empty() || options.input.profile.empty()) return;
  throw Error(
      ErrorCode::invalid_argument,
      "-o needs the layers' names, which a trace does not have: give a --workload file "
      "that has them, or let the training choose by itself, by gradwire run without --plan");
}

void run(const Options& options) {
  check_names_known(options);
  if (!options.sweep.empty()) {
    return show_sweep(options.input, {options.sweep, options.picture, options.json});
  }
  PlanningInput input = options.input;
  input.one_device = !options.output.empty();
  const Planned found = make_plan(input, workload_of(input));
  if (!options.output.empty()) {
    write_text(options.output, plan_of(found.workload, found.selection).json());
  }
  if (!options.trace.empty()) write_timeline(options, found);
  const std::vector<BucketStep> buckets = bucket_steps(options.input, found);
  options.json ? print_object(options, found, buckets) : print_table(options, found, buckets);
}

}  // namespace

void add_plan(CLI::App& gradwire) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *gradwire.add_subcommand(
      "plan", "Predict what compression gains for a model, and choose a way for every tensor");
  add_planning_options(command, options->input);
  command.add_option("--hosts", options->input.cluster.hosts, "How many (default: 2)")
      ->check(CLI::Range(1U, kMostHosts));
  command
      .add_option("--ranks-per-host", options->input.cluster.ranks_per_host, "On each (default: 1)")
      ->check(CLI::Range(1U, kMostRanksPerHost));
  command.add_flag("--all", options->all, "Show small tensors, too");
  CLI::Option& output = *command.add_option("-o,--output", options->output,
                                            "Write the plan, for `gradwire run --plan`");
  CLI::Option& trace =
      *command.add_option("--trace", options->trace,
                          "Write the step's timeline, for ui.perfetto.dev; .json for Chrome");
  CLI::Option& sweep = *command.add_option(
      "--sweep", options->sweep,
      "Plan at many points: link=100mbit:100gbit; or of hosts, ranks-per-host, step");
  sweep.excludes(&output)->excludes(&trace);
  command.add_option("--picture", options->picture, "Draw the sweep into this file, as SVG")
      ->needs(&sweep);
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire plan --model resnet50 --hosts 4 --link 10gbit\n"
      "  gradwire plan --model vgg16 --hosts 8 --ranks-per-host 8 --costs testbed-b --codec sign\n"
      "  gradwire plan --model bert-base --link 10gbit --bucket-mb 25 --most-error 0.02\n"
      "  gradwire plan --profile trace.json --costs costs.json --link 1gbit\n"
      "  gradwire plan --workload model.json --costs costs.json -o plan.json\n"
      "  gradwire plan --model bert-base --hosts 8 --sweep link=100mbit:100gbit --picture "
      "sweep.svg\n"
      "  gradwire plan --model resnet50 --link 1gbit --trace step.pftrace");
  command.callback([options, &command] {
    if (!options->sweep.empty()) check_given_once(command, options->sweep);
    run(*options);
  });
}

}  // namespace gradwire::cli
