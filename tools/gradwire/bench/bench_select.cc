// `gradwire bench select`: how fast the largest elements of a gradient are found, beside
// std::nth_element and beside what memory allows.
//
// One thread. A selection finds the threshold (`Codec::fit`), as std::nth_element does, for which
// the magnitudes are copied without being timed. Then comes the pass that writes places and values
// (`Codec::encode`), the same for all; with a threshold of an earlier step it is all there is.
// Every round measures every method once, and a read of 128 MiB stands between them, so that
// whatever disturbs the machine disturbs all alike.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradients/synthetic.h"
#include "gradwire/codec.h"
#include "gradwire/isa.h"
#include "machine/huge_buffer.h"
#include "machine/machine.h"
#include "machine/measure.h"
#include "machine/memory_speed.h"
#include "subcommands.h"
#include "terminal/byte_size.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr std::uint64_t kSeed = 1;

constexpr const char* kRival = "nth_element";
constexpr const char* kReused = "reused";
constexpr const char* kSelections[] = {"exact", "bracket", "trimmed", "search"};

struct Options {
  std::string elements = "64M";
  double density = 0.001;
  std::string data = "student";
  unsigned repeat = 5;
  bool json = false;
};

/// One row of the result.
struct Method {
  std::string name;
  Timings seconds = {};  // for the threshold; for the pass when one is reused
  Timings whole = {};    // for both
  std::size_t selected = 0;
  double energy = 0;  // the share of the gradient's that is selected
};

double energy_of(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

/// Finds thresholds in one array of numbers, and applies them.
class Selector {
 public:
  Selector(std::size_t elements, float density, Distribution data)
      : density_(density),
        input_(elements * sizeof(float)),
        work_(elements * sizeof(float)),
        payload_(Codec::parse("topk").max_encoded_bytes(elements)),
        kept_(Codec::parse("topk")) {
    fill(data, kSeed, input_.floats());
    energy_ = energy_of(input_.floats());
    kept_ = threshold_of("bracket");
  }

  void sample(Method& method) {
    if (method.name == kRival) prepare_rival();
    Codec codec = kept_;
    const double threshold = method.name == kReused
                                 ? 0
                                 : seconds_per_call(1, [&] { codec = threshold_of(method.name); });
    const double filter = seconds_per_call(1, [&] { encode(codec); });
    method.seconds.add(method.name == kReused ? filter : threshold);
    method.whole.add(threshold + filter);
  }

  /// What the method selects; its round is the warm-up.
  void judge(Method& method) {
    sample(method);
    const auto out = work_.floats();
    if (kept_.decode(payload_.bytes().first(payload_bytes_), Dtype::f32,
                     {out.data(), out.size(), Dtype::f32}) != Status::ok) {
      throw Error(ErrorCode::bad_frame, "a payload does not decode");
    }
    method.selected = static_cast<std::size_t>(
        std::count_if(out.begin(), out.end(), [](float x) { return x != 0; }));
    method.energy = energy_of(out) / energy_;
    method.seconds = {};
    method.whole = {};
  }

  std::size_t elements() const { return input_.floats().size(); }
  std::size_t wanted() const {
    return static_cast<std::size_t>(std::ceil(density_ * static_cast<double>(elements())));
  }

 private:
  ConstTensorView input() const { return {input_.floats().data(), elements(), Dtype::f32}; }

  void prepare_rival() {
    const auto x = input_.floats();
    std::transform(x.begin(), x.end(), work_.floats().begin(),
                   [](float value) { return std::fabs(value); });
  }

  Codec threshold_of(const std::string& method) {
    if (method != kRival) {
      return Codec::parse(fmt::format("topk:density={},select={}", density_, method)).fit(input());
    }
    const auto magnitudes = work_.floats();
    const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(wanted()) - 1;
    std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
    return Codec::parse(fmt::format("topk:threshold={}", std::nextafter(*last, 0.0F)));
  }

  void encode(const Codec& codec) {
    payload_bytes_ = codec.encode(input(), {.random = {.seed = kSeed}}, payload_.bytes()).bytes;
  }

  float density_;
  HugeBuffer input_;
  HugeBuffer work_;
  HugeBuffer payload_;
  std::size_t payload_bytes_ = 0;
  double energy_ = 0;
  Codec kept_;
};

struct Result {
  std::vector<Method> methods;
  double read_gbps = 0;
  double cpu_share = 1;
};

Result measure(Selector& selector, unsigned rounds) {
  Result result;
  result.methods.push_back({kRival});
  for (const char* name : kSelections) result.methods.push_back({name});
  result.methods.push_back({kReused});
  MemorySpeed memory;
  Progress progress(result.methods.size() * (rounds + 1));
  for (Method& method : result.methods) {
    progress.begin_step("warm-up " + method.name);
    selector.judge(method);
  }
  const CpuShare cpu;
  for (unsigned round = 0; round < rounds; ++round) {
    for (Method& method : result.methods) {
      progress.begin_step(method.name);
      memory.sample_read();
      selector.sample(method);
    }
  }
  result.cpu_share = cpu.share();
  result.read_gbps = gigabytes_per_second(MemorySpeed::kBytes, memory.read().median());
  return result;
}

const Method& find(const Result& result, std::string_view name) {
  return *std::find_if(result.methods.begin(), result.methods.end(),
                       [&](const Method& method) { return method.name == name; });
}

/// What a row says in relation to others.
struct Relations {
  Relations(const Result& result, const Method& method, std::size_t elements)
      : read_gbps(gigabytes_per_second(elements * sizeof(float), method.seconds.median())),
        speedup(find(result, kRival).seconds.median() / method.seconds.median()),
        whole_speedup(find(result, kRival).whole.median() / method.whole.median()),
        energy_of_exact(method.energy / find(result, "exact").energy) {}

  double read_gbps;
  double speedup;
  double whole_speedup;
  double energy_of_exact;
};

void show_as_json(const Result& result, const Selector& selector, const Options& options) {
  Json object;
  object["cpu"] = cpu_name();
  object["isa"] = current_isa();
  object["threads"] = 1;
  object["rounds"] = options.repeat;
  object["cpu_share"] = measured(result.cpu_share);
  object["data"] = options.data;
  object["wanted"] = selector.wanted();
  object["read_gbps"] = measured(result.read_gbps);
  object["rows"] = Json::array();
  for (const Method& method : result.methods) {
    const Relations relations(result, method, selector.elements());
    Json row;
    row["method"] = method.name;
    row["elements"] = selector.elements();
    row["density"] = options.density;
    row["seconds"] = measured(method.seconds.median());
    row["seconds_min"] = measured(method.seconds.fastest());
    row["seconds_max"] = measured(method.seconds.slowest());
    row["whole_seconds"] = measured(method.whole.median());
    row["selected"] = method.selected;
    row["read_gbps"] = measured(relations.read_gbps);
    row["speedup"] = measured(relations.speedup);
    row["whole_speedup"] = measured(relations.whole_speedup);
    row["energy"] = measured(method.energy);
    row["energy_of_exact"] = measured(relations.energy_of_exact);
    object["rows"].push_back(row);
  }
  print_json(object);
}

void show_as_table(const Result& result, const Selector& selector, const Options& options) {
  print_note(fmt::format("{}, {}, one thread; memory: read {:.2f} GB/s", cpu_name(), current_isa(),
                         result.read_gbps));
  print_note(fmt::format("{} of {} elements wanted, {} data\n", selector.wanted(),
                         selector.elements(), options.data));
  TextTable table({{"selection", "", Align::left},
                   {"threshold", "ms"},
                   {"speed", "GB/s"},
                   {"speed", "x read"},
                   {"speed", "x nth_element"},
                   {"with the pass", "ms"},
                   {"speed", "x nth_element"},
                   {"selected", ""},
                   {"energy", "%"},
                   {"energy", "x exact"}});
  for (const Method& method : result.methods) {
    const Relations relations(result, method, selector.elements());
    table.add_row({method.name, fmt::format("{:.1f}", 1e3 * method.seconds.median()),
                   fmt::format("{:.2f}", relations.read_gbps),
                   fmt::format("{:.2f}", relations.read_gbps / result.read_gbps),
                   fmt::format("{:.1f}", relations.speedup),
                   fmt::format("{:.1f}", 1e3 * method.whole.median()),
                   fmt::format("{:.1f}", relations.whole_speedup),
                   fmt::format("{}", method.selected), fmt::format("{:.2f}", 100 * method.energy),
                   fmt::format("{:.4f}", relations.energy_of_exact)},
                  method.name == kRival ? Emphasis::faint : Emphasis::none);
  }
  print(table);
  print_note(fmt::format(
      "\nThe pass writes places and values; it is all that a reused threshold leaves to do. Median "
      "of "
      "{} rounds\nafter an untimed one. nth_element has a copy of the magnitudes, made untimed.",
      options.repeat));
  if (const std::string note = disturbance_note(result.cpu_share); !note.empty()) print_note(note);
}

std::size_t parse_elements(const std::string& text) {
  const std::size_t elements = parse_byte_size(text);
  if (elements > 0) return elements;
  throw Error(ErrorCode::invalid_argument, "--elements " + text + " leaves nothing to select from");
}

void run(const Options& options) {
  Selector selector(parse_elements(options.elements), static_cast<float>(options.density),
                    parse_distribution(options.data));
  const Result result = measure(selector, options.repeat);
  (options.json ? show_as_json : show_as_table)(result, selector, options);
}

}  // namespace

void add_bench_select(CLI::App& bench) {
  CLI::App& command =
      *bench.add_subcommand("select", "How fast the largest elements of a gradient are found");
  const auto options = std::make_shared<Options>();
  command.add_option("--elements", options->elements, "Numbers to select from (default: 64M)")
      ->type_name("COUNT");
  command.add_option("--density", options->density, "Share to select (default: 0.001)")
      ->type_name("SHARE")
      ->check(CLI::Range(1e-5, 1.0));
  command
      .add_option("--data", options->data,
                  "Numbers: gaussian, laplace, student, sparse (default: student)")
      ->type_name("NAME");
  command.add_option("--repeat", options->repeat, "Rounds; the median is shown (default: 5)")
      ->type_name("N")
      ->check(CLI::Range(1U, 100000U));
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench select\n"
      "  gradwire bench select --elements 4M --density 0.01 --data gaussian\n"
      "  gradwire bench select --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
