#include "gradwire/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gradwire/error.h"
#include "plan/located_json.h"
#include "plan/pattern.h"
#include "plan/plan_reader.h"

namespace gradwire {
namespace {

std::string written(const Stage& stage) {
  std::string text = fmt::format("\"way\": {}", quoted(stage.way.text()));
  if (!stage.reason.empty()) text += fmt::format(", \"reason\": {}", quoted(stage.reason));
  return text;
}

/// What stands in an entry's braces, behind what it is for.
std::string written(const std::vector<Stage>& stages) {
  if (stages.size() == 1) return written(stages.front());
  std::vector<std::string> lines;
  for (const Stage& stage : stages) {
    lines.push_back(
        fmt::format("      {{\"from_step\": {}, {}}}", stage.from_step, written(stage)));
  }
  return fmt::format("\"stages\": [\n{}\n    ]", fmt::join(lines, ",\n"));
}

template <class Predicate>
bool any_way(const Plan& plan, Predicate predicate) {
  const auto among = [&](const std::vector<Stage>& stages) {
    return std::ranges::any_of(stages, predicate, &Stage::way);
  };
  return among(plan.otherwise) || std::ranges::any_of(plan.layers, among, &LayerPlan::stages);
}

void check_stages(const std::vector<Stage>& stages, const std::string& what) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::invalid_spec, fmt::format("{}: {}", what, why));
  };
  if (stages.empty()) refuse("there is no stage");
  if (stages.front().from_step != 0) refuse("the first stage is from step 0 on");
  if (!std::ranges::is_sorted(stages, std::ranges::less_equal(), &Stage::from_step)) {
    refuse("stages are in the order of their steps");
  }
  for (const Stage& stage : stages) stage.way.check();
}

}  // namespace

Plan Plan::parse(std::string_view json) { return read_plan(parse_located_json(json)); }

Plan Plan::read(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: it is a directory", path));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  try {
    Plan plan = parse(text);
    for (LayerPlan& entry : plan.layers) entry.place = fmt::format("{}, {}", path, entry.place);
    return plan;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, {}", path, error.what()));
  }
}

std::string Plan::json() const {
  std::vector<std::string> entries;
  for (const LayerPlan& entry : layers) {
    entries.push_back(
        fmt::format("    {{\"layers\": {}, {}}}", quoted(entry.layers), written(entry.stages)));
  }
  const std::string listed =
      entries.empty() ? "[]" : fmt::format("[\n{}\n  ]", fmt::join(entries, ",\n"));
  return fmt::format("{{\n  \"gradwire_plan\": {},\n  \"layers\": {},\n  \"default\": {{{}}}\n}}\n",
                     kPlanVersion, listed, written(otherwise));
}

const std::vector<Stage>& Plan::stages_of(std::string_view layer) const {
  const std::string name(layer);
  auto found = std::ranges::find(layers, name, &LayerPlan::layers);
  if (found == layers.end()) {
    found = std::ranges::find_if(
        layers, [&](const LayerPlan& entry) { return matches(entry.layers, name); });
  }
  return found == layers.end() ? otherwise : found->stages;
}

bool Plan::has_feedback() const {
  return any_way(*this, [](const Way& way) { return way.feedback.has_value(); });
}

bool Plan::has_momentum() const {
  return any_way(*this, [](const Way& way) { return way.feedback && way.feedback->momentum != 0; });
}

void Plan::check_matches(std::span<const std::string> names) const {
  std::vector<std::string> unmatched;
  for (const LayerPlan& entry : layers) {
    const auto matched = [&](const std::string& name) {
      return name == entry.layers || matches(entry.layers, name);
    };
    if (std::ranges::any_of(names, matched)) continue;
    const std::string place = entry.place.empty() ? "" : fmt::format(" ({})", entry.place);
    unmatched.push_back(fmt::format("'{}'{}", entry.layers, place));
  }
  if (unmatched.empty()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("no layer matches {} of the plan; there are, for instance, {}",
                          fmt::join(unmatched, ", "),
                          fmt::join(names.first(std::min<std::size_t>(names.size(), 5)), ", ")));
}

void Plan::check() const {
  check_stages(otherwise, "the plan's default");
  for (const LayerPlan& entry : layers) check_stages(entry.stages, "the plan of " + entry.layers);
}

const Stage& stage_at(std::span<const Stage> stages, std::uint64_t step) noexcept {
  const auto next = std::ranges::upper_bound(stages, step, {}, &Stage::from_step);
  return *std::prev(next);
}

}  // namespace gradwire
