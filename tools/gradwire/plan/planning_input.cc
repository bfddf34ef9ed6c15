#include "plan/planning_input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "gradwire/error.h"
#include "plan/bucket_steps.h"
#include "plan/calibration.h"
#include "plan/cost_presets.h"
#include "plan/link_rate.h"
#include "plan/models.h"
#include "plan/profile.h"

namespace gradwire::cli {
namespace {

/// What is wrong with the file is said with its name.
template <class Read>
Workload workload_in(const std::string& path, Read read) {
  const std::string text = read_text(path);
  try {
    return read(text);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  return std::move(text).str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write " + path);
}

namespace {

Workload given_workload(const PlanningInput& input) {
  if (!input.workload.empty()) return workload_in(input.workload, parse_workload);
  if (!input.profile.empty()) return workload_in(input.profile, profile_workload);
  if (input.model.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("of what? Give --model (one of {}), --profile or --workload",
                            fmt::join(model_names(), ", ")));
  }
  if (!std::isfinite(input.step_milliseconds)) {
    throw Error(ErrorCode::invalid_argument, "--step is no number of milliseconds: give one");
  }
  const double seconds = input.step_milliseconds > 0 ? input.step_milliseconds / 1e3
                                                     : default_step_seconds(input.model);
  return model_workload(input.model, seconds);
}

}  // namespace

Workload workload_of(const PlanningInput& input) {
  Workload workload = given_workload(input);
  if (input.bucket_mebibytes == 0) return workload;
  return in_buckets_of(workload, input.bucket_mebibytes);
}

Costs costs_of(const PlanningInput& input) {
  const auto presets = cost_preset_names();
  const bool is_preset = std::ranges::count(presets, input.costs) > 0;
  Costs costs = is_preset ? preset_costs(input.costs) : load_costs(input.costs);
  const LinkRate rate = input.link.empty() ? LinkRate{} : parse_link_rate(input.link);
  if (rate.limited()) costs.between.seconds_per_byte = 1 / rate.bytes_per_second();
  return costs;
}

namespace {

/// `sign+feedback` is the same as `sign`: the planner gives feedback to codecs that need it.
Codec parse_codec(const std::string& text) {
  const Way way = Way::parse(text);
  const bool plain = !way.feedback || *way.feedback == Feedback{};
  if (way.route.empty() && plain) return way.codec;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--codec '{}': the planner chooses routes, and feedback has no keys "
                          "here: name the codec alone, as in {}",
                          text, Way{.codec = way.codec}.short_text()));
}

}  // namespace

SelectionOptions selection_options(const PlanningInput& input, const Costs& costs) {
  SelectionOptions options{.codecs = {},
                           .most_encodings = input.most_encodings,
                           .most_error = input.most_error,
                           .most_compressions = input.most_compressions};
  for (const std::string& spec : input.codecs) {
    options.codecs.push_back(parse_codec(spec));
    static_cast<void>(costs.codec(options.codecs.back()));
  }
  if (options.codecs.empty()) options.codecs = codecs_without_feedback(costs);
  if (options.codecs.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "these costs are of codecs that need feedback only: name one by --codec");
  }
  return options;
}

Planned make_plan(const PlanningInput& input, Workload workload) {
  Planned planned;
  planned.workload = std::move(workload);
  planned.costs = costs_of(input);
  if (input.one_device && planned.costs.has_other_device()) {
    planned.costs = planned.costs.without_other_device();
    planned.second_device_left_out = true;
  }
  const SelectionOptions selecting = selection_options(input, planned.costs);
  planned.selection = select(planned.workload, input.cluster, planned.costs, selecting);
  planned.baselines = baselines(planned.workload, input.cluster, planned.costs, selecting);
  return planned;
}

std::string counted(std::uint32_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string text_of(const Cluster& cluster) {
  return fmt::format("on {} with {}{}", counted(cluster.hosts, "host"),
                     counted(cluster.ranks_per_host, "rank"), cluster.hosts == 1 ? "" : " each");
}

std::string milliseconds(double seconds) {
  return std::isfinite(seconds) ? fmt::format("{:.2f}", 1e3 * seconds) : "-";
}

std::string ratio(double seconds, double by_seconds) {
  const double quotient = seconds / by_seconds;
  return std::isfinite(quotient) ? fmt::format("{:.2f}", quotient) : "-";
}

namespace {

/// A range said in a few words, which not-a-number is outside of.
CLI::Validator number_within(double least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    double number = 0;
    if (CLI::detail::lexical_cast(text, number) && number >= least && number <= most) return "";
    return fmt::format("'{}' must be a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "", "");
}

}  // namespace

void add_planning_options(CLI::App& command, PlanningInput& input) {
  CLI::Option& model = *command.add_option(
      "--model", input.model,
      "A model: vgg16, resnet50, bert-base, llama:7b, ...; an unknown name lists all");
  CLI::Option& profile = *command.add_option("--profile", input.profile,
                                             "A trace of torch.profiler, with record_shapes=True");
  command.add_option("--workload", input.workload, "A file of tensors (docs/workload.md)")
      ->excludes(&model)
      ->excludes(&profile);
  profile.excludes(&model);
  command
      .add_option("--step", input.step_milliseconds,
                  "Milliseconds that the model computes in a step (default: a V100's, about)")
      ->needs(&model)
      ->check(number_within(1e-3, 1e9));
  command.add_option("--link", input.link,
                     "Their links: 1gbit, 25gbit, ... (default: as the costs have it)");
  command.add_option("--costs", input.costs,
                     fmt::format("A file of `gradwire calibrate`, or {} (default: cpu)",
                                 fmt::join(cost_preset_names(), ", ")));
  command.add_option(
      "--codec", input.codecs,
      "A codec that may be taken; repeat for several (default: all without feedback)");
  command
      .add_option("--most-encodings", input.most_encodings,
                  "Of a number on its way, for accuracy (default: 4)")
      ->check(CLI::Range(0, 8));
  command
      .add_option("--most-error", input.most_error,
                  "Squared error of a layer, as a share of its squares (docs/plan.md)")
      ->check(number_within(0, 1e9));
  command
      .add_option("--most-compressions", input.most_compressions,
                  "Layers that may be compressed in a step (default: all)")
      ->check(number_within(0, 1e9));
  command
      .add_option("--bucket-mb", input.bucket_mebibytes,
                  "DDP's bucket_cap_mb (default: gradients one by one)")
      ->check(CLI::Range(1, 4096));
}

}  // namespace gradwire::cli
