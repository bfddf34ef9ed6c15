// `gradwire bench adapt`: how few bytes each solver needs for the same error, on stored gradients.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "adapt/solver.h"
#include "bench/adaptation.h"
#include "gradients/gradient_groups.h"
#include "gradients/mapped_file.h"
#include "gradients/safetensors.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr const char* kGradients = "data/gradients.safetensors";

struct Options {
  std::string gradients = kGradients;
  std::vector<std::string> groups;
  bool json = false;
};

struct Results {
  std::vector<AdaptedGroup> steps;
  std::vector<AdaptedGroup> models;  // all steps of each
};

std::vector<GradientGroup> wanted_groups(const Options& options,
                                         const std::vector<NamedTensor>& tensors) {
  std::vector<GradientGroup> groups = group_gradients(tensors);
  std::erase_if(groups, [&](const GradientGroup& group) {
    return !group.whole || !is_wanted(options.groups, group.name);
  });
  if (!groups.empty()) return groups;
  throw Error(
      ErrorCode::invalid_argument,
      options.gradients + " has no gradients to adapt to; leave --group out to see what it holds");
}

void add_to_model(std::vector<AdaptedGroup>& models, const AdaptedGroup& step) {
  const std::size_t slash = step.name.rfind('/');
  if (slash == std::string::npos) return;
  const std::string model = step.name.substr(0, slash);
  if (models.empty() || models.back().name != model) {
    models.push_back(step);
    models.back().name = model;
  } else {
    models.back() += step;
  }
}

void check_default(const Options& options) {
  if (options.gradients != kGradients || std::filesystem::exists(kGradients)) return;
  throw Error(ErrorCode::io,
              fmt::format("there is no {}; run bench/capture_gradients.py, or name a file of your "
                          "own with --gradients",
                          kGradients));
}

Results measure(const Options& options) {
  check_default(options);
  const MappedFile file(options.gradients);
  const std::vector<NamedTensor> tensors = read_safetensors(options.gradients, file);
  const std::vector<GradientGroup> groups = wanted_groups(options, tensors);
  Progress progress(groups.size());
  Results results;
  for (const GradientGroup& group : groups) {
    progress.begin_step(group.name);
    AdaptedGroup adapted = compare_solvers(group);
    if (adapted.layers == 0) continue;
    add_to_model(results.models, adapted);
    results.steps.push_back(std::move(adapted));
  }
  if (!results.steps.empty()) return results;
  throw Error(ErrorCode::invalid_argument,
              options.gradients +
                  " has only layers that travel exactly; save some of two dimensions and 1024 "
                  "elements at least");
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

double bits_per_element(const AdaptedGroup& group, const Adaptation& adaptation) {
  return ratio(8 * adaptation.bytes, static_cast<double>(group.elements));
}

Json rows_as_json(const std::vector<AdaptedGroup>& groups) {
  Json rows = Json::array();
  for (const AdaptedGroup& group : groups) {
    for (const Adaptation& adaptation : group.adaptations) {
      Json row;
      row["group"] = group.name;
      row["layers"] = group.layers;
      row["elements"] = group.elements;
      row["solver"] = adaptation.solver;
      row["candidates"] = adaptation.candidates;
      row["bytes"] = measured(adaptation.bytes);
      row["bits_per_element"] = measured(bits_per_element(group, adaptation));
      row["ratio_to_reference"] = measured(ratio(adaptation.bytes, group.adaptations[0].bytes));
      row["error_of_budget"] = measured(ratio(adaptation.squared_error, group.budget));
      row["milliseconds"] = measured(adaptation.milliseconds);
      rows.push_back(row);
    }
  }
  return rows;
}

void show_as_json(const Options& options, const Results& results) {
  Json object;
  object["gradients"] = options.gradients;
  object["reference"] = adapt::kReference;
  object["models"] = rows_as_json(results.models);
  object["steps"] = rows_as_json(results.steps);
  print_json(object);
}

void show_as_table(const Options& options, const Results& results) {
  TextTable table({{"solver", "", Align::left},
                   {"candidates", "", Align::left},
                   {"size", "bit/elem"},
                   {"bytes", "x uniform"},
                   {"error", "x budget"},
                   {"solving", "ms"}});
  const bool by_step = !options.groups.empty() || results.models.empty();
  for (const AdaptedGroup& group : by_step ? results.steps : results.models) {
    table.add_section(
        fmt::format("{}, {} layers, {} elements", group.name, group.layers, group.elements));
    for (const Adaptation& adaptation : group.adaptations) {
      const bool is_reference = &adaptation == group.adaptations.data();
      table.add_row({adaptation.solver, adaptation.candidates,
                     fmt::format("{:.3f}", bits_per_element(group, adaptation)),
                     fmt::format("{:.3f}", ratio(adaptation.bytes, group.adaptations[0].bytes)),
                     fmt::format("{:.3f}", ratio(adaptation.squared_error, group.budget)),
                     is_reference ? "" : fmt::format("{:.3f}", adaptation.milliseconds)},
                    is_reference ? Emphasis::faint : Emphasis::none);
    }
  }
  print(table);
  print_note(
      "\nPayloads of layers that codecs take, with no more squared error than 4 bits for all make."
      "\nkmeans and linear know no budget: of all ranges of bits the best that keeps it is shown.");
  if (!by_step) print_note("Sums over steps are shown; --group '*' shows single steps.");
}

void run(const Options& options) {
  const Results results = measure(options);
  (options.json ? show_as_json : show_as_table)(options, results);
}

}  // namespace

void add_bench_adapt(CLI::App& bench) {
  CLI::App& command =
      *bench.add_subcommand("adapt", "Bytes for the same error, by codecs chosen layer by layer");
  const auto options = std::make_shared<Options>();
  command
      .add_option("--gradients", options->gradients,
                  fmt::format("Gradients named MODEL/STEP/LAYER (default: {})", kGradients))
      ->type_name("FILE");
  command.add_option("--group", options->groups, "Show only steps that match, for example 'cnn/*'")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench adapt\n"
      "  gradwire bench adapt --group 'lstm/*'\n"
      "  gradwire bench adapt --gradients my.safetensors --json\n"
      "\n"
      "bench/capture_gradients.py makes such a file and shows how to write one from your own "
      "model.");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
