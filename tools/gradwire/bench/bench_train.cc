// `gradwire bench train`: what a step of training takes with each way to exchange gradients.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/training_methods.h"
#include "bench/training_run.h"
#include "gradwire/error.h"
#include "machine/measure.h"
#include "plan/link_rate.h"
#include "run/interruption.h"
#include "run/rank_stage.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr unsigned kDefaultRanks = 4;

struct Options {
  std::string model = "words";
  std::string methods = "gloo,fp16,bf16,powersgd,grid:step=0.5,uniform:bits=4,bucket=128";
  unsigned settle = 0;
  unsigned hosts = 0;
  std::string link = "1gbit";
  unsigned ranks = 0;
  unsigned steps = 50;
  unsigned seeds = 1;
  unsigned batch = 0;
  std::string optimizer = "adamw";
  bool evaluate = false;
  std::string python;
  std::string output;
  bool json = false;
};

/// Test hosts unless told otherwise. A machine that cannot play them trains all the same, and says
/// what its figures are worth.
RankStage stage_of(const Options& options) {
  if (options.ranks > 0) return RankStage::on_this_host(options.ranks);
  if (options.hosts > 0) return RankStage::on_hosts(options.hosts, options.link);
  try {
    return RankStage::on_hosts(kDefaultRanks, options.link);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    std::fprintf(stderr,
                 "gradwire: %s\nTraining in %u processes of this host instead, without links of "
                 "%s: times say nothing about a network.\n",
                 error.what(), kDefaultRanks, options.link.c_str());
    return RankStage::on_this_host(kDefaultRanks);
  }
}

/// Everything to be trained, one run after the other: all methods with one seed before the next, so
/// that a disturbance hits them alike.
class Training {
 public:
  Training(const Options& options, std::vector<std::string> methods, const RankStage& stage)
      : options_(options),
        methods_(std::move(methods)),
        stage_(stage),
        progress_(methods_.size() * options.seeds * options.steps) {}

  /// The runs of each method, in the order of its seeds.
  std::map<std::string, std::vector<Json>> run() {
    std::map<std::string, std::vector<Json>> runs;
    for (unsigned seed = 0; seed < options_.seeds; ++seed) {
      for (const std::string& method : methods_) runs[method].push_back(run(method, seed));
    }
    return runs;
  }

 private:
  Json run(const std::string& method, unsigned seed) {
    Json last = runs_.run(stage_,
                          {.model = options_.model,
                           .method = method,
                           .optimizer = options_.optimizer,
                           .steps = options_.steps,
                           .settle = options_.settle,
                           .seed = seed,
                           .batch = options_.batch,
                           .evaluate = options_.evaluate,
                           .link = options_.link,
                           .python = options_.python},
                          [&](const Json& step) { show_step(method, step); });
    last["seed"] = seed;
    if (!options_.json && isatty(STDERR_FILENO) == 0) say_end(method, last);
    return last;
  }

  void show_step(const std::string& method, const Json& step) {
    const Json& exposed = step["exposed_seconds"];
    progress_.begin_step(fmt::format(
        "{} {}/{} loss {:.3f} {:.1f} MB{}", method, step["step"].get<unsigned>(), options_.steps,
        step["loss"].get<double>(), step["wire_bytes"].get<double>() / 1e6,
        exposed.is_null() ? "" : fmt::format(" exposed {:.2f} s", exposed.get<double>())));
  }

  void say_end(const std::string& method, const Json& run) {
    std::fprintf(
        stderr, "%s\n",
        fmt::format("{}, seed {}: {} steps of {:.3f} s, {:.3f} s of it exposed "
                    "communication, {:.2f} MB each, loss {:.3f}",
                    method, run["seed"].get<unsigned>(), options_.steps,
                    run["step_seconds"].get<double>(), run["exposed_seconds"].get<double>(),
                    run["wire_bytes_per_step"].get<double>() / 1e6, run["final_loss"].get<double>())
            .c_str());
    if (run.contains("choice")) {
      std::fprintf(stderr, "  %s\n", run["choice"].get<std::string>().c_str());
    }
  }

  const Options& options_;
  const std::vector<std::string> methods_;
  const RankStage& stage_;
  TrainingRuns runs_;
  Progress progress_;
};

Timings over_seeds(const std::vector<Json>& runs, const char* key) {
  Timings values;
  for (const Json& run : runs) values.add(run[key].get<double>());
  return values;
}

Json row_of(const std::string& method, const std::vector<Json>& runs, double fp32_bytes) {
  const Timings step = over_seeds(runs, "step_seconds");
  const double wire = over_seeds(runs, "wire_bytes_per_step").median();
  Json row;
  row["method"] = method;
  row["step_seconds"] = measured(step.median());
  row["step_seconds_min"] = measured(step.fastest());
  row["step_seconds_max"] = measured(step.slowest());
  row["compute_seconds"] = measured(over_seeds(runs, "compute_seconds").median());
  row["exposed_seconds"] = measured(over_seeds(runs, "exposed_seconds").median());
  row["cpu_seconds"] = measured(over_seeds(runs, "cpu_seconds").median());
  row["wire_bytes_per_step"] = measured(wire);
  row["wire_bytes_from"] = runs[0]["wire_bytes_from"];
  row["of_fp32"] = measured(wire / fp32_bytes);
  row["final_loss"] = measured(over_seeds(runs, "final_loss").median());
  for (const char* key : {"held_out_loss", "held_out_accuracy"}) {
    if (runs[0].contains(key)) row[key] = measured(over_seeds(runs, key).median());
  }
  row["replicas_equal"] =
      std::ranges::all_of(runs, [](const Json& run) { return run["replicas_equal"].get<bool>(); });
  row["seeds"] = runs.size();
  row["runs"] = runs;
  return row;
}

/// How many times as fast as gloo, where that was trained too.
void add_comparison(Json& rows) {
  double gloo = 0;
  for (const Json& row : rows) {
    if (row["method"] == "gloo") gloo = row["step_seconds"];
  }
  if (gloo == 0) return;
  for (Json& row : rows) row["times_gloo"] = measured(gloo / row["step_seconds"].get<double>());
}

Json report_of(const Options& options, const RankStage& stage,
               const std::vector<std::string>& methods,
               const std::map<std::string, std::vector<Json>>& runs) {
  const double n = stage.ranks();
  const std::size_t parameters = runs.at(methods[0])[0]["parameters"];
  const double fp32_bytes = 2 * (n - 1) / n * 4 * static_cast<double>(parameters);
  Json report;
  report["model"] = options.model;
  report["parameters"] = parameters;
  report["optimizer"] = options.optimizer;
  report["steps"] = options.steps;
  report["ranks"] = stage.ranks();
  report["hosts"] = stage.has_hosts() ? stage.ranks() : 0;
  report["link"] = stage.has_hosts() ? options.link : "none";
  report["rows"] = Json::array();
  for (const std::string& method : methods) {
    report["rows"].push_back(row_of(method, runs.at(method), fp32_bytes));
  }
  add_comparison(report["rows"]);
  return report;
}

std::string place_of(const Json& report) {
  if (report["hosts"] == 0) {
    return fmt::format("{} processes of one host, no network between them",
                       report["ranks"].get<unsigned>());
  }
  const std::string link = report["link"];
  return fmt::format("{} hosts, {}", report["hosts"].get<unsigned>(),
                     link == "none" ? "links as fast as this machine is" : link + " links");
}

std::string loss_text(const Json& loss) {
  return loss.is_null() ? "-" : fmt::format("{:.4f}", loss.get<double>());
}

void show_as_table(const Json& report) {
  std::vector<Column> columns{{"method", "", Align::left},
                              {"step", "ms"},
                              {"from", "ms"},
                              {"to", "ms"},
                              {"faster", "x gloo"},
                              {"compute", "ms"},
                              {"exposed", "ms"},
                              {"sent", "MB/step"},
                              {"of fp32", ""},
                              {"loss", ""}};
  const bool evaluated = report["rows"][0].contains("held_out_loss");
  if (evaluated) {
    columns.push_back({"held out", "loss"});
    columns.push_back({"right", "%"});
  }
  TextTable table(columns);
  const auto milliseconds = [](const Json& seconds) {
    return fmt::format("{:.1f}", 1e3 * seconds.get<double>());
  };
  table.add_section(
      fmt::format("{}, {:.1f} M parameters, {}, {} steps; {}", report["model"].get<std::string>(),
                  report["parameters"].get<double>() / 1e6, report["optimizer"].get<std::string>(),
                  report["steps"].get<unsigned>(), place_of(report)));
  for (const Json& row : report["rows"]) {
    std::vector<std::string> cells{
        row["method"].get<std::string>(),
        milliseconds(row["step_seconds"]),
        milliseconds(row["step_seconds_min"]),
        milliseconds(row["step_seconds_max"]),
        row.contains("times_gloo") ? fmt::format("{:.2f}", row["times_gloo"].get<double>()) : "-",
        milliseconds(row["compute_seconds"]),
        milliseconds(row["exposed_seconds"]),
        fmt::format("{:.3f}", row["wire_bytes_per_step"].get<double>() / 1e6),
        fmt::format("{:.3f}", row["of_fp32"].get<double>()),
        loss_text(row["final_loss"])};
    if (evaluated) {
      cells.push_back(loss_text(row["held_out_loss"]));
      cells.push_back(fmt::format("{:.2f}", 100 * row["held_out_accuracy"].get<double>()));
    }
    table.add_row(cells);
  }
  print(table);
  const unsigned seeds = report["rows"][0]["seeds"];
  print_note(fmt::format(
      "\nMedians over steps, then over {} (from, to: the extremes). exposed "
      "= step - compute;\nloss: mean of the last fifth of the steps; sent: by one rank, "
      "as counted {}.",
      seeds == 1 ? "one seed" : fmt::format("{} seeds", seeds),
      report["hosts"] == 0 ? "on the loopback or by gradwire itself (shared memory)"
                           : "by the kernel at its interface"));
  for (const Json& row : report["rows"]) {
    if (row["method"] != "auto") continue;
    print_note("auto trained until it had chosen before these steps: its loss is no comparison.");
  }
  for (const Json& row : report["rows"]) {
    if (row["replicas_equal"]) continue;
    print_note(fmt::format("The ranks' models differ after {}.", row["method"].get<std::string>()));
  }
}

void write(const Json& report, const std::string& path) {
  std::ofstream file(path);
  file << report.dump(2) << '\n';
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write " + path + ": check the folder and the disk");
}

void run(const Options& options) {
  const std::vector<std::string> methods = parse_training_methods(options.methods);
  parse_link_rate(options.link);
  const auto is_residual = [](const std::string& name) { return name.starts_with("residual"); };
  if (options.optimizer != "sgd" && std::ranges::any_of(methods, is_residual)) {
    throw Error(ErrorCode::invalid_argument,
                "the method residual has the momentum of SGD; add --optimizer sgd");
  }
  const Interruption interruption;
  const RankStage stage = stage_of(options);
  const Json report = report_of(options, stage, methods, Training(options, methods, stage).run());
  if (!options.output.empty()) write(report, options.output);
  options.json ? print_json(report) : show_as_table(report);
}

void add_options(CLI::App& command, Options& options) {
  command
      .add_option("--model", options.model,
                  "vgg, cnn, resnet (images), transformer, words or lstm (text) (default: words)")
      ->check(CLI::IsMember({"vgg", "cnn", "resnet", "transformer", "words", "lstm"}));
  command
      .add_option(
          "--methods", options.methods,
          "auto, adapt, gloo, fp16, bf16, powersgd[:rank=N], CODEC[+feedback], residual[:…]")
      ->type_name("LIST");
  CLI::Option& hosts =
      *command
           .add_option("--hosts", options.hosts,
                       "Test hosts, one rank each; needs root (default: 4 where possible)")
           ->check(CLI::Range(2U, TestHosts::kMaxCount));
  command.add_option("--link", options.link,
                     "Their links: 100mbit, 1gbit, 10gbit, none (default: 1gbit)");
  command.add_option("--ranks", options.ranks, "Processes of this host instead of hosts")
      ->check(CLI::Range(2U, 256U))
      ->excludes(&hosts);
  command.add_option("--steps", options.steps, "Steps of each training (default: 50)")
      ->check(CLI::Range(2U, 1000000U));
  command.add_option("--settle", options.settle,
                     "Steps before those, which do not count, of methods of gradwire (default: 0)");
  command.add_option("--seeds", options.seeds, "Trainings of each method (default: 1)")
      ->check(CLI::Range(1U, 1000U));
  command.add_option("--batch", options.batch, "Images, or rows of text, per rank (default: few)")
      ->check(CLI::Range(1U, 4096U));
  command.add_flag("--evaluate", options.evaluate,
                   "Test trained models on what they have not seen, too");
  command.add_option("--optimizer", options.optimizer, "adamw or sgd, with momentum")
      ->check(CLI::IsMember({"adamw", "sgd"}));
  command.add_option("--python", options.python,
                     "Python that has torch (default: as `bench allreduce --help` says)");
  command.add_option("--output", options.output, "Write the JSON object to a file, too")
      ->type_name("FILE");
  command.add_flag("--json", options.json, "Print one JSON object");
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *bench.add_subcommand(
      "train", "Train a model with each way to exchange gradients, beside torch's gloo and hooks");
  add_options(command, *options);
  command.footer(
      "Examples:\n"
      "  gradwire bench train\n"
      "  gradwire bench train --model transformer --hosts 4 --link 1gbit --seeds 3 --json\n"
      "  gradwire bench train --methods gloo,grid:step=0.5,uniform:bits=4,bucket=128 --link none\n"
      "  gradwire bench train --ranks 2 --steps 20 --methods gloo,sign+feedback --optimizer sgd\n"
      "  gradwire bench train --methods gloo,auto --link 10gbit\n"
      "  gradwire bench train --link 100mbit --methods gloo,residual:warmup=20 --optimizer sgd\n"
      "  gradwire bench train --model vgg --ranks 4 --batch 32 --steps 936 --evaluate\n"
      "\n"
      "fp16, bf16 and powersgd are torch's communication hooks over gloo. torch's PowerSGD aborts "
      "with\n"
      "gloo when there are several buckets, so it gets one; its bf16 hook needs NCCL, so ours does "
      "the same.");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
