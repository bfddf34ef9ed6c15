// `gradwire plan`: which way every tensor of a model should take, and what that gains.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "gradwire/error.h"
#include "gradwire/plan.h"
#include "plan/bucket_steps.h"
#include "plan/calibration.h"
#include "plan/cost_presets.h"
#include "plan/link_rate.h"
#include "plan/models.h"
#include "plan/profile.h"
#include "plan/selection.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

struct Options {
  std::string model, workload, profile;
  double step_milliseconds = 0;
  Cluster cluster{.hosts = 2, .ranks_per_host = 1};
  std::string link;
  std::string costs = "cpu";
  std::vector<std::string> codecs;
  std::uint32_t most_encodings = 4;
  std::optional<double> most_error;
  std::optional<std::size_t> most_compressions;
  std::size_t bucket_mebibytes = 0;  // 0: gradients are exchanged as they are ready
  bool all = false;
  bool json = false;
  std::string output;
};

// Of which one is advised, DDP's own among them.
constexpr std::size_t kBucketMebibytes[] = {25, 1, 5, 10, 50, 100};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorCode::io, fmt::format("cannot read {}", path));
  return std::move(text).str();
}

Workload workload_of(const Options& options) {
  if (!options.workload.empty()) return parse_workload(read_text(options.workload));
  if (!options.profile.empty()) return profile_workload(read_text(options.profile));
  if (options.model.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("of what? Give --model (one of {}), --profile or --workload",
                            fmt::join(model_names(), ", ")));
  }
  const double seconds = options.step_milliseconds > 0 ? options.step_milliseconds / 1e3
                                                       : default_step_seconds(options.model);
  return model_workload(options.model, seconds);
}

bool is_preset(const std::string& name) {
  return std::ranges::count(cost_preset_names(), name) > 0;
}

Costs costs_of(const Options& options) {
  Costs costs = is_preset(options.costs) ? preset_costs(options.costs) : load_costs(options.costs);
  const LinkRate rate = options.link.empty() ? LinkRate{} : parse_link_rate(options.link);
  if (rate.limited()) costs.between.seconds_per_byte = 1 / rate.bytes_per_second();
  return costs;
}

/// Those that are asked for, or all measured ones that training can take without feedback.
std::vector<Codec> codecs_of(const Options& options, const Costs& costs) {
  std::vector<Codec> codecs;
  for (const std::string& spec : options.codecs) {
    codecs.push_back(Codec::parse(spec));
    static_cast<void>(costs.codec(codecs.back()));
  }
  if (codecs.empty()) codecs = codecs_without_feedback(costs);
  if (codecs.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "these costs are of codecs that need feedback only: name one by --codec");
  }
  return codecs;
}

struct Answer {
  Workload workload;
  Costs costs;
  Selection selection;
  Baselines baselines;
  std::vector<BucketStep> bucket_steps;  // of sizes that DDP's buckets may have
};

Answer answer(const Options& options) {
  Answer answer;
  answer.workload = workload_of(options);
  answer.costs = costs_of(options);
  const SelectionOptions selecting{.codecs = codecs_of(options, answer.costs),
                                   .most_encodings = options.most_encodings,
                                   .most_error = options.most_error,
                                   .most_compressions = options.most_compressions};
  if (options.bucket_mebibytes > 0) {
    answer.workload = in_buckets_of(answer.workload, options.bucket_mebibytes);
  } else {
    answer.bucket_steps = steps_by_bucket(answer.workload, options.cluster, answer.costs, selecting,
                                          kBucketMebibytes);
  }
  answer.selection = select(answer.workload, options.cluster, answer.costs, selecting);
  answer.baselines = baselines(answer.workload, options.cluster, answer.costs, selecting);
  return answer;
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

void print_table(const Options& options, const Answer& answer) {
  const double step = answer.selection.step_seconds;
  const auto beside = [&](const char* what, double seconds) {
    fmt::print("  {:<28} {:>9} ms  {:.2f} x\n", what, milliseconds(seconds), seconds / step);
  };
  fmt::print("{}: {} tensors on {} hosts with {} ranks each; costs: {}\n\n", answer.workload.name,
             answer.workload.tensors.size(), options.cluster.hosts, options.cluster.ranks_per_host,
             answer.costs.source);
  beside("a step by this plan", step);
  beside("exact, the best way for all", answer.baselines.plain_seconds);
  beside("compressed, the same for all", answer.baselines.all_compressed_seconds);
  beside("if codecs took no time", answer.baselines.bound_seconds);
  beside("computing alone", answer.workload.compute_seconds());
  fmt::print("\n");
  TextTable table({{"tensor", "", Align::left},
                   {"elements"},
                   {"ready", "ms"},
                   {"codec", "", Align::left},
                   {"way", "", Align::left},
                   {"why", "", Align::left}});
  std::size_t small = 0;
  for (std::size_t i = 0; i < answer.selection.choices.size(); ++i) {
    const Choice& choice = answer.selection.choices[i];
    const WorkloadTensor& tensor = answer.workload.tensors[i];
    if (!options.all && choice.reason.starts_with("small")) {
      ++small;
      continue;
    }
    table.add_row({tensor.name, std::to_string(tensor.elements), milliseconds(tensor.ready_seconds),
                   choice.codec.spec(), name_of(choice.option), choice.reason});
  }
  print(table);
  if (!answer.bucket_steps.empty()) {
    const BucketStep& best = best_of(answer.bucket_steps);
    const BucketStep& usual = answer.bucket_steps.front();
    print_note(
        fmt::format("With DDP's buckets: bucket_cap_mb={} is best, {} ms a step; {} has {} ms. "
                    "--bucket-mb fixes "
                    "one",
                    best.mebibytes, milliseconds(best.step_seconds), usual.mebibytes,
                    milliseconds(usual.step_seconds)));
  }
  if (small > 0)
    print_note(fmt::format("{} small tensors travel with these; --all shows them", small));
}

void print_object(const Options& options, const Answer& answer) {
  Json object;
  object["model"] = answer.workload.name;
  object["hosts"] = options.cluster.hosts;
  object["ranks_per_host"] = options.cluster.ranks_per_host;
  object["costs"] = answer.costs.source;
  object["predicted_seconds"] = measured(answer.selection.step_seconds);
  object["exposed_seconds"] = measured(answer.selection.exposed_seconds);
  object["plain_seconds"] = measured(answer.baselines.plain_seconds);
  object["all_compressed_seconds"] = measured(answer.baselines.all_compressed_seconds);
  object["bound_seconds"] = measured(answer.baselines.bound_seconds);
  object["compute_seconds"] = measured(answer.workload.compute_seconds());
  object["least_seconds"] = measured(answer.baselines.least_seconds);
  if (!answer.bucket_steps.empty()) {
    object["advised_bucket_mb"] = best_of(answer.bucket_steps).mebibytes;
  }
  for (const BucketStep& each : answer.bucket_steps) {
    object["buckets"].push_back(
        {{"bucket_mb", each.mebibytes}, {"predicted_seconds", measured(each.step_seconds)}});
  }
  for (std::size_t i = 0; i < answer.selection.choices.size(); ++i) {
    const Choice& choice = answer.selection.choices[i];
    const WorkloadTensor& tensor = answer.workload.tensors[i];
    object["tensors"].push_back({{"name", tensor.name},
                                 {"elements", tensor.elements},
                                 {"ready_seconds", measured(tensor.ready_seconds)},
                                 {"way", choice.way().text()},
                                 {"reason", choice.reason}});
  }
  print_json(object);
}

void run(const Options& options) {
  const Answer found = answer(options);
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    file << plan_of(found.workload, found.selection).json();
    file.close();
    if (!file) throw Error(ErrorCode::io, "cannot write " + options.output);
  }
  options.json ? print_object(options, found) : print_table(options, found);
}

}  // namespace

void add_plan(CLI::App& gradwire) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *gradwire.add_subcommand(
      "plan", "Predict what compression gains for a model, and choose a way for every tensor");
  CLI::Option& model = *command.add_option(
      "--model", options->model,
      "A model: vgg16, resnet50, bert-base, llama:7b, ...; an unknown name lists all");
  CLI::Option& profile = *command.add_option("--profile", options->profile,
                                             "A trace of torch.profiler, with record_shapes=True");
  command.add_option("--workload", options->workload, "A file of tensors (docs/workload.md)")
      ->excludes(&model)
      ->excludes(&profile);
  profile.excludes(&model);
  command
      .add_option("--step", options->step_milliseconds,
                  "Milliseconds that the model computes in a step (default: a V100's, about)")
      ->needs(&model)
      ->check(CLI::PositiveNumber);
  command.add_option("--hosts", options->cluster.hosts, "How many (default: 2)")
      ->check(CLI::Range(1, 4096));
  command.add_option("--ranks-per-host", options->cluster.ranks_per_host, "On each (default: 1)")
      ->check(CLI::Range(1, 64));
  command.add_option("--link", options->link,
                     "Their links: 1gbit, 25gbit, ... (default: as the costs have it)");
  command.add_option("--costs", options->costs,
                     fmt::format("A file of `gradwire calibrate`, or {} (default: cpu)",
                                 fmt::join(cost_preset_names(), ", ")));
  command.add_option(
      "--codec", options->codecs,
      "A codec that may be taken; repeat for several (default: all without feedback)");
  command
      .add_option("--most-encodings", options->most_encodings,
                  "Of a number on its way, for accuracy (default: 4)")
      ->check(CLI::Range(0, 8));
  command
      .add_option(
          "--most-error", options->most_error,
          "Of a layer: squared error as a share of its squares, of Gaussian numbers, summed "
          "over encodings")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--most-compressions", options->most_compressions,
                     "Layers that may be compressed in a step (default: all)");
  command
      .add_option("--bucket-mb", options->bucket_mebibytes,
                  "DDP's bucket_cap_mb (default: gradients one by one, and sizes compared)")
      ->check(CLI::Range(1, 4096));
  command.add_flag("--all", options->all, "Show small tensors, too");
  command.add_option("-o,--output", options->output, "Write the plan, for `gradwire run --plan`");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire plan --model resnet50 --hosts 4 --link 10gbit\n"
      "  gradwire plan --model vgg16 --hosts 8 --ranks-per-host 8 --costs testbed-b --codec sign\n"
      "  gradwire plan --model bert-base --link 10gbit --bucket-mb 25 --most-error 0.02\n"
      "  gradwire plan --profile trace.json --costs costs.json --link 1gbit -o plan.json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
