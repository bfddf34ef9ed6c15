// `gradwire bench distortion`: bits against error, on real gradients or on synthetic data.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/distortion.h"
#include "gradients/gradient_groups.h"
#include "gradients/mapped_file.h"
#include "gradients/safetensors.h"
#include "gradients/synthetic.h"
#include "gradwire/codec.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr const char* kBaseline = "uniform:bits=4,bucket=128,rounding=stochastic";
constexpr const char* kDefaultCodecs[] = {
    "uniform:bits=2,bucket=128,rounding=stochastic",
    "uniform:bits=8,bucket=128,rounding=stochastic",
    "exponential:bits=4",
    "sign",
    "grid:step=0.5",
    "grid:step=1",
    "grid:step=0.5,locality=0",
    "grid:step=0.5,rounding=nearest",
    "grid:step=0.5,rounding=dither",
};

constexpr std::size_t kSyntheticElements = std::size_t{4} << 20;
constexpr std::uint64_t kSyntheticSeed = 1;

struct Options {
  std::string gradients;
  std::vector<std::string> codecs;
  std::vector<std::string> groups;
  bool json = false;
};

/// What one codec did to one group.
struct Row {
  std::string group;
  std::string codec;
  Distortion distortion;
  double ratio_to_baseline;
  std::optional<double>
      shannon_bits;  // the least that any code of Gaussian data needs for this error
};

/// All codecs on one group; the baseline stands first.
struct GroupResult {
  std::string group;
  bool is_total = false;
  bool is_gaussian = false;
  std::vector<std::string> codecs;
  std::vector<Distortion> distortions;
};

std::vector<std::string> codec_list(const Options& options) {
  std::vector<std::string> texts = {kBaseline};
  if (options.codecs.empty()) {
    texts.insert(texts.end(), std::begin(kDefaultCodecs), std::end(kDefaultCodecs));
  }
  for (const std::string& text : options.codecs) {
    Codec::parse(text);  // refuses a wrong one before the work begins
    if (text != kBaseline) texts.push_back(text);
  }
  return texts;
}

bool wanted(const Options& options, const std::string& group) {
  return is_wanted(options.groups, group);
}

// --- Real gradients
// ---------------------------------------------------------------------------------

/// Adds a step's result to the result of its sum over steps, which stands behind the steps.
void add_to_total(std::vector<GroupResult>& totals, const std::string& name,
                  const GroupResult& result) {
  if (totals.empty() || totals.back().group != name) {
    totals.push_back(result);
    totals.back().group = name;
    totals.back().is_total = true;
    return;
  }
  for (std::size_t i = 0; i < result.distortions.size(); ++i) {
    totals.back().distortions[i] += result.distortions[i];
  }
}

std::vector<GradientGroup> wanted_groups(const Options& options,
                                         const std::vector<NamedTensor>& tensors) {
  std::vector<GradientGroup> groups;
  for (GradientGroup& group : group_gradients(tensors)) {
    const bool for_total = !group.total.empty() && wanted(options, group.total);
    if (wanted(options, group.name) || for_total) groups.push_back(std::move(group));
  }
  if (groups.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        options.gradients + " has no gradients to show; leave --group out to see what it holds");
  }
  return groups;
}

std::vector<GroupResult> measure_gradients(const Options& options,
                                           const std::vector<std::string>& codecs) {
  const MappedFile file(options.gradients);
  const std::vector<NamedTensor> tensors = read_safetensors(options.gradients, file);
  const std::vector<GradientGroup> groups = wanted_groups(options, tensors);
  Progress progress(groups.size() * codecs.size());
  DistortionMeter meter;
  std::vector<GroupResult> results;
  std::vector<GroupResult> totals;
  for (const GradientGroup& group : groups) {
    GroupResult result{.group = group.name, .codecs = codecs, .distortions = {}};
    for (const std::string& text : codecs) {
      progress.begin_step(group.name + " " + text);
      result.distortions.push_back(meter.measure(Codec::parse(text), group.layers, group.step));
    }
    if (!group.total.empty()) add_to_total(totals, group.total, result);
    results.push_back(std::move(result));
  }
  results.insert(results.end(), totals.begin(), totals.end());
  std::erase_if(results, [&](const GroupResult& r) { return !wanted(options, r.group); });
  return results;
}

// --- Synthetic data
// ---------------------------------------------------------------------------------

/// The grid at the baseline's error: one step for all elements and subtractive dither, which is
/// what the theory of entropy-coded quantization speaks about.
std::string matched_grid(double nmse) {
  return fmt::format("grid:nmse={:.6g},locality=0,rounding=dither", nmse);
}

GroupResult measure_synthetic_group(Distribution distribution, const std::string& name,
                                    std::vector<std::string> codecs, bool with_matched,
                                    Progress& progress) {
  std::vector<float> values(kSyntheticElements);
  fill(distribution, kSyntheticSeed, values);
  const Layer layer{layer_key(name), {values.data(), values.size(), Dtype::f32}};
  GroupResult result{.group = name,
                     .is_gaussian = distribution == Distribution::gaussian,
                     .codecs = std::move(codecs),
                     .distortions = {}};
  DistortionMeter meter;
  for (std::size_t i = 0; i < result.codecs.size(); ++i) {
    progress.begin_step(name + " " + result.codecs[i]);
    result.distortions.push_back(meter.measure(Codec::parse(result.codecs[i]), {&layer, 1}, 0));
    if (i == 0 && with_matched) result.codecs.push_back(matched_grid(result.distortions[0].nmse()));
  }
  return result;
}

std::vector<GroupResult> measure_synthetic(const Options& options,
                                           const std::vector<std::string>& codecs) {
  constexpr std::pair<Distribution, const char*> kGroups[] = {
      {Distribution::gaussian, "gaussian"},
      {Distribution::laplace, "laplace"},
      {Distribution::student_t3, "student_t3"},
  };
  const bool with_matched = options.codecs.empty();
  Progress progress(std::size(kGroups) * (codecs.size() + (with_matched ? 1 : 0)));
  std::vector<GroupResult> results;
  for (const auto& [distribution, name] : kGroups) {
    if (!wanted(options, name)) continue;
    results.push_back(measure_synthetic_group(distribution, name, codecs, with_matched, progress));
  }
  if (results.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "--group matches no group; there are gaussian, laplace and student_t3");
  }
  return results;
}

// --- Output
// -----------------------------------------------------------------------------------------

Row make_row(const GroupResult& result, std::size_t i) {
  const Distortion& distortion = result.distortions[i];
  const auto bytes = static_cast<double>(distortion.bytes);
  Row row{result.group, result.codecs[i], distortion,
          bytes / static_cast<double>(result.distortions[0].bytes), std::nullopt};
  if (result.is_gaussian && distortion.nmse() > 0) {
    row.shannon_bits = std::max(0.0, 0.5 * std::log2(1 / distortion.nmse()));
  }
  return row;
}

Json row_as_json(const Row& row) {
  Json json;
  json["group"] = row.group;
  json["codec"] = row.codec;
  json["elements"] = row.distortion.elements;
  json["bytes"] = row.distortion.bytes;
  const double bits = row.distortion.bits_per_element();
  json["bits_per_element"] = measured(bits);
  json["nmse"] = measured(row.distortion.nmse());
  json["ratio_to_baseline"] = measured(row.ratio_to_baseline);
  json["shannon_bits"] = row.shannon_bits ? measured(*row.shannon_bits) : nullptr;
  json["gap_bits"] = row.shannon_bits ? measured(bits - *row.shannon_bits) : nullptr;
  return json;
}

void show_as_json(const Options& options, const std::vector<GroupResult>& results) {
  Json object;
  object["gradients"] = options.gradients.empty() ? Json(nullptr) : Json(options.gradients);
  object["baseline"] = kBaseline;
  object["rows"] = Json::array();
  for (const GroupResult& result : results) {
    for (std::size_t i = 0; i < result.codecs.size(); ++i) {
      object["rows"].push_back(row_as_json(make_row(result, i)));
    }
  }
  print_json(object);
}

std::vector<std::string> row_as_text(const Row& row) {
  const double bits = row.distortion.bits_per_element();
  std::vector<std::string> cells = {row.codec, fmt::format("{:.3f}", bits),
                                    fmt::format("{:.3f}", row.ratio_to_baseline),
                                    fmt::format("{:.2e}", row.distortion.nmse())};
  if (row.shannon_bits) cells.push_back(fmt::format("{:+.3f}", bits - *row.shannon_bits));
  return cells;
}

/// A file of many steps makes a long table: people get the sums over steps, scripts get everything.
bool shown_to_people(const Options& options, const std::vector<GroupResult>& results,
                     const GroupResult& result) {
  if (!options.groups.empty() || result.is_total) return true;
  const auto is_step_of_total = [&](const GroupResult& other) {
    const std::string family = other.group.substr(0, other.group.rfind('/') + 1);
    return other.is_total && result.group.starts_with(family);
  };
  return std::none_of(results.begin(), results.end(), is_step_of_total);
}

void show_as_table(const Options& options, const std::vector<GroupResult>& results) {
  TextTable table({{"codec", "", Align::left},
                   {"size", "bit/elem"},
                   {"bytes", "x baseline"},
                   {"NMSE", ""},
                   {options.gradients.empty() ? "over Shannon" : "",
                    options.gradients.empty() ? "bit/elem" : ""}});
  bool all_shown = true;
  for (const GroupResult& result : results) {
    if (!shown_to_people(options, results, result)) {
      all_shown = false;
      continue;
    }
    table.add_section(fmt::format("{}, {} elements", result.group, result.distortions[0].elements));
    for (std::size_t i = 0; i < result.codecs.size(); ++i) {
      table.add_row(row_as_text(make_row(result, i)), i == 0 ? Emphasis::faint : Emphasis::none);
    }
  }
  print(table);
  print_note(
      "\nBytes of whole frames, headers included. The first codec of each group is the baseline.");
  if (!all_shown) print_note("Sums over steps are shown; --group '*' shows single steps as well.");
}

void run(const Options& options) {
  const std::vector<std::string> codecs = codec_list(options);
  const std::vector<GroupResult> results = options.gradients.empty()
                                               ? measure_synthetic(options, codecs)
                                               : measure_gradients(options, codecs);
  (options.json ? show_as_json : show_as_table)(options, results);
}

}  // namespace

void add_bench_distortion(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("distortion", "Bits against error of the codecs");
  const auto options = std::make_shared<Options>();
  command
      .add_option(
          "--gradients", options->gradients,
          "A safetensors file of gradients named MODEL/STEP/LAYER (default: synthetic data)")
      ->type_name("FILE");
  command
      .add_option("--codec", options->codecs,
                  "A codec to judge; repeat for several (default: a list)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command
      .add_option("--group", options->groups, "Show only groups that match, for example 'cnn/*'")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench distortion\n"
      "  gradwire bench distortion --gradients data/gradients.safetensors\n"
      "  gradwire bench distortion --gradients my.safetensors --codec grid:step=1 --group "
      "'mymodel/*' --json\n"
      "\n"
      "bench/capture_gradients.py makes such a file and shows how to write one from your own "
      "model.");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
