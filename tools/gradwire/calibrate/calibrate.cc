// `gradwire calibrate`: what exchanging gradients costs on this machine, for plans.
//
// Three things are measured: what codecs take of one thread, by size; what a message takes between
// two ranks of this host and between two hosts, through the transports that jobs use; and what
// exchanges and a backward pass do to one another. docs/plan.md says how, and has the file's
// format.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "calibrate/codec_costs.h"
#include "calibrate/exchange_times.h"
#include "gradients/synthetic.h"
#include "gradwire/error.h"
#include "machine/huge_buffer.h"
#include "machine/measure.h"
#include "plan/calibration.h"
#include "plan/link_rate.h"
#include "plan/resources.h"
#include "run/interruption.h"
#include "subcommands.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultCodecs[] = {
    "none",           "fp16", "uniform:bits=4,bucket=128", "uniform:bits=8",       "grid:step=0.5",
    "grid:step=0.25", "sign", "topk:density=0.01",         "randomk:density=0.01",
};
constexpr std::size_t kShownElements[] = {1U << 14U, 1U << 20U};
constexpr std::uint64_t kSeed = 1;                     // of Gaussian numbers
constexpr std::size_t kFresh = std::size_t{1} << 20U;  // longer tensors repeat their beginning
constexpr double kPayloadShare = 1448.0 / 1538;        // of Ethernet's bits, behind all headers

struct Options {
  std::vector<std::string> codecs;
  std::string link;
  unsigned hosts = 0;
  std::string output;
  bool again = false;
  bool quick = false;
  bool json = false;
  // Of ranks that calibrate starts:
  std::string store;
  std::string transport = "auto";
};

/// With what their sums travel by, and exact messages, which every exchange may have.
std::vector<Codec> codecs_of(const Options& options) {
  std::vector<std::string> texts = options.codecs;
  if (texts.empty()) texts.assign(std::begin(kDefaultCodecs), std::end(kDefaultCodecs));
  std::vector<Codec> codecs{Codec::parse("none")};
  for (const std::string& text : texts) {
    const Codec codec = Codec::parse(text);
    for (const Codec& each : {codec, codec.for_sums()}) {
      if (std::ranges::find(codecs, each) == codecs.end()) codecs.push_back(each);
    }
  }
  return codecs;
}

CodecEffort effort_of(const Options& options) {
  CodecEffort effort;
  const unsigned first = 10;
  const unsigned last = options.quick ? 18 : 26;
  for (unsigned power = first; power <= last; power += options.quick ? 4 : 1) {
    effort.sizes.push_back(std::size_t{1} << power);
  }
  if (options.quick) effort.rounds = 1;
  return effort;
}

/// Gaussian numbers, in memory that all codecs and sizes share.
struct Gradients {
  explicit Gradients(std::size_t elements) : numbers(4 * elements), room(4 * elements) {
    const std::span<float> x = numbers.floats();
    fill(Distribution::gaussian, kSeed, x.first(std::min(kFresh, elements)));
    for (std::size_t i = kFresh; i < elements; i += kFresh) {
      std::copy_n(x.begin(), std::min(kFresh, elements - i), x.begin() + static_cast<long>(i));
    }
  }

  HugeBuffer numbers;
  HugeBuffer room;
};

/// Returns the share of a CPU that measuring had.
double add_codecs(Costs& costs, const std::vector<Codec>& codecs, const Options& options) {
  const CodecEffort effort = effort_of(options);
  const Gradients gradients(effort.sizes.back());
  const CpuShare cpu;
  Progress progress(codecs.size() * effort.rounds);
  costs.codecs.merge(measure_codecs(codecs, {gradients.numbers.floats(), gradients.room.floats()},
                                    effort,
                                    [&](std::string_view what) { progress.begin_step(what); }));
  return cpu.share();
}

/// A link of this rate for a host that needs as long for TCP as this one.
LinkCost at_rate(const LinkCost& loopback, LinkRate rate) {
  if (!rate.limited()) return loopback;
  const double wire = 1 / (rate.bytes_per_second() * kPayloadShare);
  LinkCost link = loopback;
  link.seconds_per_byte = std::max(wire, loopback.seconds_per_byte);
  return link;
}

void add_links(Costs& costs, const Options& options) {
  const Interruption interruption;  // nothing of the ranks stays behind
  const MeasuredCodec& exact = costs.codec(Codec::parse("none"));
  const auto here = RankStage::on_this_host(2);
  const ExchangeTimes inside = measure_exchanges(here, {"auto", options.quick});
  costs.inside = link_cost(inside.gathers, exact);
  costs.delay = inside.delay;
  costs.interference = inside.interference;
  const std::string link = options.link.empty() ? "none" : options.link;
  if (options.hosts > 0) {
    const auto hosts = RankStage::on_hosts(options.hosts, link);
    costs.between = link_cost(measure_exchanges(hosts, {"auto", options.quick}).gathers, exact);
  } else {
    const ExchangeTimes tcp = measure_exchanges(here, {"tcp", options.quick});
    costs.between = at_rate(link_cost(tcp.gathers, exact), parse_link_rate(link));
  }
}

Costs costs_of(const MachineIdentity& machine) {
  const double cores_of_rank = std::thread::hardware_concurrency() / 2.0;  // of each of two
  const auto cores = std::max(1U, static_cast<unsigned>(cores_of_rank));
  const std::string date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  return {.source = fmt::format("measured on {}, {}", machine.host, date),
          .host = machine.host,
          .isa = machine.isa,
          .version = machine.version,
          .inside = {},
          .between = {},
          .threads = std::max(1U, codec_threads(cores, 0)),
          .cores = cores_of_rank,
          .codecs = {}};
}

fs::path cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return fs::path(cache) / "gradwire";  // others are invalid
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "gradwire";
  throw Error(ErrorCode::unavailable,
              "there is no folder to keep costs in: set HOME or XDG_CACHE_HOME, or give -o FILE");
}

/// Whole or not at all.
void write_file(const fs::path& path, const std::string& text) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  const fs::path unfinished = path.string() + ".unfinished";
  const bool written = static_cast<bool>(std::ofstream(unfinished) << text << std::flush);
  if (written) fs::rename(unfinished, path, error);
  if (written && !error) return;
  fs::remove(unfinished, error);
  throw Error(ErrorCode::io, fmt::format("cannot write {}: check the folder and the disk, or give "
                                         "another file by -o",
                                         path.string()));
}

std::string microseconds(double seconds) { return fmt::format("{:.1f}", 1e6 * seconds); }

void show_links(const Costs& costs) {
  TextTable table({{"link", "", Align::left},
                   {"latency", "us"},
                   {"bandwidth", "GB/s"},
                   {"processor", "us"},
                   {"processor", "us/MB"}});
  const auto add = [&](const char* name, const LinkCost& link) {
    const double rate = 1e-9 / link.seconds_per_byte;
    table.add_row({name, microseconds(link.seconds),
                   link.seconds_per_byte > 0 ? fmt::format("{:.3f}", rate) : "any",
                   microseconds(link.cpu_seconds), microseconds(1e6 * link.cpu_seconds_per_byte)});
  };
  add("two ranks of this host", costs.inside);
  add("two hosts", costs.between);
  print(table);
  print_note(
      fmt::format("\nWhile all cores compute, a message waits {} us longer, and computing "
                  "beside exchanges takes {:.2f} x its time.\n",
                  microseconds(costs.delay), costs.interference));
}

void show_codecs(const Costs& costs) {
  TextTable table({{"codec", "", Align::left},
                   {"size", "B/elem"},
                   {"prepare", "us/16Ki"},
                   {"encode", "us/16Ki"},
                   {"decode", "us/16Ki"},
                   {"prepare", "us/1Mi"},
                   {"encode", "us/1Mi"},
                   {"decode", "us/1Mi"}});
  for (const auto& [spec, codec] : costs.codecs) {
    std::vector<std::string> cells{spec, fmt::format("{:.4f}", codec.bytes_per_element)};
    for (const std::size_t elements : kShownElements) {
      for (const CostTable* each : {&codec.preparation, &codec.encode, &codec.decode}) {
        cells.push_back(each->points().empty() ? "-" : microseconds(each->at(elements)));
      }
    }
    table.add_row(std::move(cells));
  }
  print(table);
}

void show(const Costs& costs, const Options& options) {
  if (options.json) {
    std::fputs(text_of(costs).c_str(), stdout);
    return;
  }
  print_note(fmt::format("{}, {}, gradwire {}; of one thread of {} per rank\n", costs.source,
                         costs.isa, costs.version, costs.threads));
  show_links(costs);
  show_codecs(costs);
}

/// Where it does not stand in the way of JSON.
void tell(const Options& options, const std::string& note) {
  options.json ? static_cast<void>(std::fprintf(stderr, "%s\n", note.c_str()))
               : print_note("\n" + note);
}

/// What was measured before and holds still. A file of another machine that the user names is an
/// error: it may be the only copy.
std::optional<Costs> known_costs(const Options& options, const fs::path& path) {
  if (options.again || path.empty() || !fs::exists(path)) return std::nullopt;
  try {
    return load_costs(path.string());
  } catch (const Error& error) {
    if (options.output.empty()) return std::nullopt;
    throw Error(error.code() == ErrorCode::io ? ErrorCode::io : ErrorCode::invalid_argument,
                std::string(error.what()) + "; --again overwrites the file");
  }
}

void run(const Options& options) {
  if (!options.store.empty()) {
    return run_exchange_rank(options.store, {options.transport, options.quick});
  }
  parse_link_rate(options.link.empty() ? "none" : options.link);  // wrong ones are named at once
  std::vector<Codec> missing = codecs_of(options);
  const MachineIdentity machine = this_machine();
  // A quick calibration is too rough to be found by others.
  const fs::path path = !options.output.empty() ? fs::path(options.output)
                        : options.quick         ? fs::path()
                                                : cache_folder() / calibration_file_name(machine);
  const std::optional<Costs> known = known_costs(options, path);
  Costs costs = known.value_or(costs_of(machine));
  std::erase_if(missing, [&](const Codec& codec) { return costs.codecs.contains(codec.spec()); });
  const bool links = !known || !options.link.empty() || options.hosts > 0;
  const double share = missing.empty() ? 1 : add_codecs(costs, missing, options);
  if (links) add_links(costs, options);
  const bool changed = links || !missing.empty();
  if (changed && !path.empty()) write_file(path, text_of(costs));
  show(costs, options);
  if (share < kUndisturbedShare) {
    tell(options, fmt::format("Disturbed: other processes took the CPU for {:.0f} % of the time. "
                              "Latency, delay and interference may be wrong; repeat with --again "
                              "on an idle machine.",
                              100 * (1 - share)));
  }
  if (path.empty()) return;
  tell(options, changed ? fmt::format("Kept in {}", path.string())
                        : fmt::format("{}, still valid; --again measures anew ({})", costs.source,
                                      path.string()));
}

}  // namespace

void add_calibrate(CLI::App& gradwire) {
  CLI::App& command = *gradwire.add_subcommand(
      "calibrate", "Measure what codecs and links cost on this machine, for plans");
  const auto options = std::make_shared<Options>();
  command
      .add_option(
          "--codec", options->codecs,
          "A codec to measure, unless the file has it; repeat for several (default: a list)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command
      .add_option("--link", options->link,
                  "Rate of links between hosts: 1gbit, 25gbit, ... (default: that of TCP here)")
      ->type_name("RATE");
  command
      .add_option("--hosts", options->hosts,
                  "2: measure that link between test hosts, which needs root")
      ->type_name("N")
      ->check(CLI::Range(2, 2));
  command
      .add_option("-o,--output", options->output,
                  "File to keep costs in (default: one in ~/.cache/gradwire)")
      ->type_name("FILE");
  command.add_flag("--again", options->again, "Measure anew what the file has already");
  command.add_flag("--quick", options->quick,
                   "Rough figures in three seconds, kept only in the file that -o names");
  command.add_flag("--json", options->json, "Print the file's JSON");
  command.add_option("--store", options->store)
      ->group("");  // calibrate starts its ranks with these
  command.add_option("--transport", options->transport)->group("");
  command.footer(
      "Examples:\n"
      "  gradwire calibrate                          measure, or show what was measured before\n"
      "  gradwire calibrate --link 25gbit --again    for hosts with links of 25 Gbit/s\n"
      "  gradwire calibrate --codec uniform:bits=2   one codec more\n"
      "  gradwire calibrate --hosts 2 --link 1gbit -o costs.json\n"
      "  gradwire calibrate --quick --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
