// `gradwire bench allreduce`: the collective beside its limit and its rival, in nccl-tests' manner.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "bench/allreduce_case.h"
#include "gradients/synthetic.h"
#include "gradwire/codec.h"
#include "gradwire/error.h"
#include "run/interruption.h"
#include "run/local_ranks.h"
#include "run/python_interpreter.h"
#include "run/rank_stage.h"
#include "run/scratch_folder.h"
#include "subcommands.h"
#include "terminal/byte_size.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  AllreducePlan plan;
  std::string from = "1K";
  std::string to = "64M";
  double factor = 4;
  unsigned ranks = 2;
  unsigned hosts = 0;
  std::string link = "none";
  std::string compare;
  std::string python;
  std::string store;  // set in ranks: those that bench starts, and mpi's
  bool json = false;
};

std::vector<std::size_t> sizes_of(const Options& options) {
  const std::size_t last = parse_byte_size(options.to);
  std::vector<std::size_t> sizes;
  double size = static_cast<double>(parse_byte_size(options.from));
  if (size < 4 || options.factor <= 1) {
    throw Error(ErrorCode::invalid_argument, "-b is at least 4 and -f above 1");
  }
  for (; size <= static_cast<double>(last); size *= options.factor) {
    sizes.push_back(static_cast<std::size_t>(size) / 4 * 4);
  }
  return sizes;
}

std::vector<std::string> rank_arguments(const Options& options, const std::string& store) {
  const AllreducePlan& plan = options.plan;
  std::vector<std::string> arguments{fs::read_symlink("/proc/self/exe").string(),
                                     "bench",
                                     "allreduce",
                                     "--store",
                                     store,
                                     "-b",
                                     options.from,
                                     "-e",
                                     options.to,
                                     "-f",
                                     fmt::format("{}", options.factor),
                                     "--algorithm",
                                     plan.algorithm,
                                     "--transport",
                                     plan.transport,
                                     "--data",
                                     plan.data,
                                     "--repeat",
                                     std::to_string(plan.repeat),
                                     "--lanes",
                                     std::to_string(plan.lanes),
                                     "--piece",
                                     std::to_string(plan.piece)};
  for (const std::string& codec : plan.codecs) {
    arguments.emplace_back("--codec");
    arguments.push_back(codec);
  }
  if (plan.tls) arguments.emplace_back("--tls");
  if (plan.check) arguments.emplace_back("--check");
  if (options.hosts > 0) arguments.emplace_back("--line-rate");
  return arguments;
}

/// What rank 0 printed, as JSON.
Json run_ranks(const RankStage& stage, const std::vector<std::string>& arguments) {
  std::string result;
  stage.run(arguments, [&](std::string_view line) { result += line; });
  return Json::parse(result);
}

/// Medians of torch's gloo, by size.
Json run_gloo(const RankStage& stage, const Options& options, const ScratchFolder& scratch) {
  std::vector<std::string> arguments{find_python(options.python), "-m",
                                     "gradwire.bench.gloo_allreduce", scratch.path() + "/gloo",
                                     std::to_string(options.plan.repeat)};
  for (const std::size_t size : options.plan.sizes) arguments.push_back(std::to_string(size));
  return run_ranks(stage, arguments);
}

void add_comparison(Json& report, const Json& gloo) {
  for (Json& row : report["rows"]) {
    const Json& seconds = gloo.at(std::to_string(row["bytes"].get<std::size_t>()));
    row["gloo_seconds"] = seconds;
    row["times_gloo"] = measured(seconds.get<double>() / row["seconds"].get<double>());
  }
}

void add_limit(Json& report) {
  if (!report.contains("line_rate_bytes_per_s")) return;
  const double rate = report["line_rate_bytes_per_s"];
  for (Json& row : report["rows"]) {
    const double limit = row["wire_bytes"].get<double>() / rate;
    row["line_rate_bytes_per_s"] = rate;
    row["wire_limit_seconds"] = measured(limit);
    row["times_wire_limit"] = measured(row["seconds"].get<double>() / limit);
  }
}

std::string optional_number(const Json& row, const char* key, const char* format) {
  return row.contains(key) ? fmt::format(fmt::runtime(format), row[key].get<double>()) : "-";
}

void show_as_table(const Json& report, const Options& options) {
  TextTable table({{"size", "B"},
                   {"count", "elem"},
                   {"type", ""},
                   {"codec", "", Align::left},
                   {"time", "us"},
                   {"algbw", "GB/s"},
                   {"busbw", "GB/s"},
                   {"wire", "B/rank"},
                   {"ratio", "x fp32"},
                   {"NMSE", ""},
                   {"limit", "x wire"},
                   {"gloo", "x faster"},
                   {"replicas", ""},
                   {"wrong", ""}});
  const double n = options.hosts > 0 ? options.hosts : options.ranks;
  for (const Json& row : report["rows"]) {
    const double seconds = row["seconds"];
    const double bytes = row["bytes"].get<double>();
    const double exact = 2 * (n - 1) / n * bytes;  // what a rank sends of plain fp32
    table.add_row({fmt::format("{}", row["bytes"].get<std::size_t>()),
                   fmt::format("{}", row["elements"].get<std::size_t>()), "float",
                   row["codec"].get<std::string>(), fmt::format("{:.1f}", seconds * 1e6),
                   fmt::format("{:.3f}", bytes / seconds / 1e9),
                   fmt::format("{:.3f}", exact / seconds / 1e9),
                   fmt::format("{}", row["wire_bytes"].get<std::size_t>()),
                   fmt::format("{:.2f}", row["wire_bytes"].get<double>() / exact),
                   fmt::format("{:.1e}", row["nmse"].get<double>()),
                   optional_number(row, "times_wire_limit", "{:.2f}"),
                   optional_number(row, "times_gloo", "{:.2f}"),
                   row["replicas_equal"].get<bool>() ? "equal" : "DIFFER",
                   optional_number(row, "wrong", "{:.0f}")});
  }
  print(table);
  if (report.contains("line_rate_bytes_per_s")) {
    print_note(
        fmt::format("\nA plain TCP stream gets {:.1f} MB/s through a link; limit = time over bytes "
                    "sent at that rate.",
                    report["line_rate_bytes_per_s"].get<double>() / 1e6));
  }
  print_note(fmt::format(
      "\nMedian of {} rounds on rank 0 after two untimed ones; algbw and busbw count fp32 bytes.",
      options.plan.repeat));
}

void show(const Json& report, const Options& options) {
  options.json ? print_json(report) : show_as_table(report, options);
  for (const Json& row : report["rows"]) {
    if (!row["replicas_equal"].get<bool>()) {
      throw Error(ErrorCode::bad_frame,
                  "ranks ended with different bits: this is a bug of gradwire");
    }
    if (row.value("wrong", 0) > 0) {
      throw Error(ErrorCode::bad_frame, "results are wrong: this is a bug of gradwire");
    }
  }
}

/// This process is one of the ranks. Those of mpi have nobody above them who shows the report.
void run_rank(Options& options) {
  if (options.hosts > 0 || !options.compare.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "ranks are where mpirun has put them: leave out --hosts and --compare");
  }
  const std::optional<Json> report = run_allreduce_rank(options.plan, options.store);
  if (!report) return;
  options.ranks = (*report)["ranks"];
  options.store == "mpi" ? show(*report, options) : print_json(*report);
}

void run(Options options) {
  options.plan.sizes = sizes_of(options);
  if (options.plan.codecs.empty())
    options.plan.codecs = {"none", "uniform:bits=4,bucket=128", "grid:step=0.5"};
  if (options.store.empty() && launched_by_mpi()) options.store = "mpi";
  if (!options.store.empty()) return run_rank(options);
  for (const std::string& codec : options.plan.codecs) Codec::parse(codec);
  parse_distribution(options.plan.data);
  const Interruption interruption;
  const ScratchFolder scratch;
  const RankStage stage = options.hosts > 0 ? RankStage::on_hosts(options.hosts, options.link)
                                            : RankStage::on_this_host(options.ranks);
  Json report = run_ranks(stage, rank_arguments(options, "file:" + scratch.path() + "/store"));
  add_limit(report);
  if (options.compare == "gloo") add_comparison(report, run_gloo(stage, options, scratch));
  report["tls"] = options.plan.tls;
  report["hosts"] = options.hosts;
  report["link"] = options.link;
  show(report, options);
}

}  // namespace

void add_bench_allreduce(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  AllreducePlan& plan = options->plan;
  CLI::App& command = *bench.add_subcommand(
      "allreduce", "All-reduce between ranks, beside the links' limit and torch's gloo");
  command.add_option("-b,--begin", options->from, "Smallest size of the fp32 tensor (default: 1K)");
  command.add_option("-e,--end", options->to, "Largest size (default: 64M)");
  command.add_option("-f,--factor", options->factor, "From one size to the next (default: 4)");
  command
      .add_option("--codec", plan.codecs,
                  "A codec to measure; repeat for several (default: a list)")
      ->type_name("SPEC");
  command.add_option("--algorithm", plan.algorithm,
                     "auto, sra, ring, tree, allgather, hierarchical, hierarchical-exact, or an "
                     "option of gradwire "
                     "schedule --list (default: auto)");
  command.add_option("--transport", plan.transport, "auto, shm, tcp or mpi (default: auto)");
  command.add_flag("--tls", plan.tls, "Encrypt what goes over tcp (TLS 1.3)");
  command.add_option("--ranks", options->ranks, "Processes on this host (default: 2)")
      ->check(CLI::Range(1, 256));
  command.add_option("--hosts", options->hosts, "Test hosts instead, one rank each; needs root")
      ->check(CLI::Range(2, 254));
  command.add_option("--link", options->link,
                     "Their links: 100mbit, 1gbit, 10gbit, none (default: none)");
  command.add_option("--data", plan.data,
                     "gaussian, laplace, student or sparse (default: gaussian)");
  command.add_option("--repeat", plan.repeat, "Rounds; the median is shown (default: 11)")
      ->check(CLI::Range(1, 100000));
  command.add_option("--lanes", plan.lanes, "Pieces under way at once (default: 8)");
  command.add_option("--piece", plan.piece, "Numbers per piece (default: by transport and ranks)");
  command.add_flag("--check", plan.check,
                   "Check every rank's result of every round; `wrong` counts those that fail");
  command
      .add_option("--compare", options->compare,
                  "gloo: torch's gloo on the same hosts, in the same run")
      ->check(CLI::IsMember({"gloo"}));
  command.add_option("--python", options->python, kPythonHelp);
  command.add_flag("--json", options->json, "Print one JSON object");
  command.add_option("--store", options->store,
                     "mpi: this process is a rank (the default when mpirun started it)");
  command.add_flag("--line-rate", plan.line_rate)->group("");  // bench starts its ranks with it
  command.footer(
      "Examples:\n"
      "  gradwire bench allreduce -b 8 -e 256M -f 2\n"
      "  gradwire bench allreduce --ranks 4 --codec none --compare gloo\n"
      "  gradwire bench allreduce --ranks 4 --transport tcp --check\n"
      "  mpirun -n 4 gradwire bench allreduce --transport mpi\n"
      "  gradwire bench allreduce --hosts 4 --link 1gbit -b 64M -e 64M --compare gloo --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
