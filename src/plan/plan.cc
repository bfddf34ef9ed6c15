#include "gradwire/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gradwire/error.h"
#include "plan/located_json.h"
#include "plan/pattern.h"

namespace gradwire {
namespace {

using Kind = LocatedJson::Kind;

constexpr std::uint64_t kVersion = 1;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// ---------------------------------------------------------------------------------------------
// Reading

void require(const LocatedJson& value, Kind kind, std::string_view what) {
  if (value.kind == kind) return;
  const std::string found = value.kind == Kind::text ? quoted(value.text) : value.text;
  refuse_line(value.line, fmt::format("{} here, not {}", what, found));
}

void check_keys(const LocatedJson& object, std::string_view what,
                std::initializer_list<std::string_view> known) {
  require(object, Kind::object, fmt::format("{} is an object in braces: expected one", what));
  for (const auto& [key, value] : object.members) {
    if (std::ranges::find(known, key) != known.end()) continue;
    refuse_line(value.line,
                fmt::format("unknown key '{}'; {} has {}", key, what, fmt::join(known, ", ")));
  }
}

const LocatedJson& member(const LocatedJson& object, std::string_view key, std::string_view what) {
  const LocatedJson* const found = object.find(key);
  if (found == nullptr) refuse_line(object.line, fmt::format("{} needs '{}'", what, key));
  return *found;
}

std::string text_member(const LocatedJson& object, std::string_view key, std::string_view what) {
  const LocatedJson& value = member(object, key, what);
  require(value, Kind::text, fmt::format("'{}' is a text: expected one", key));
  return value.text;
}

Stage read_stage(const LocatedJson& object, std::string_view what) {
  Stage stage;
  if (const LocatedJson* const step = object.find("from_step")) {
    require(*step, Kind::count, "'from_step' is a whole number from 0 on: expected one");
    stage.from_step = step->count;
  }
  const std::string way = text_member(object, "way", what);
  try {
    stage.way = Way::parse(way);
  } catch (const Error& error) {
    refuse_line(object.find("way")->line, error.what());
  }
  if (object.find("reason") != nullptr) stage.reason = text_member(object, "reason", what);
  return stage;
}

/// Of an entry with one way, or with several from steps on.
std::vector<Stage> read_stages(const LocatedJson& entry, std::string_view what) {
  const LocatedJson* const listed = entry.find("stages");
  if (listed == nullptr) return {read_stage(entry, what)};
  for (const std::string_view key : {"way", "reason"}) {
    if (entry.find(key) != nullptr) {
      refuse_line(entry.find(key)->line,
                  fmt::format("'{}' stands beside 'stages': put it into one of them", key));
    }
  }
  require(*listed, Kind::list, "'stages' is a list: expected one");
  if (listed->list.empty()) refuse_line(listed->line, "'stages' is empty: give at least one");
  std::vector<Stage> stages;
  for (const LocatedJson& object : listed->list) {
    check_keys(object, "a stage", {"from_step", "way", "reason"});
    const Stage stage = read_stage(object, "a stage");
    if (stages.empty() && stage.from_step != 0) {
      refuse_line(object.line, "the first stage is from step 0 on");
    }
    if (!stages.empty() && stage.from_step <= stages.back().from_step) {
      refuse_line(object.line, fmt::format("this stage is from step {} on, and the one before from "
                                           "{}: give later steps later",
                                           stage.from_step, stages.back().from_step));
    }
    stages.push_back(stage);
  }
  return stages;
}

// ---------------------------------------------------------------------------------------------
// Writing

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

Plan Plan::parse(std::string_view json) {
  const LocatedJson root = parse_located_json(json);
  check_keys(root, "a plan", {"gradwire_plan", "layers", "default"});
  const LocatedJson& version = member(root, "gradwire_plan", "a plan");
  require(version, Kind::count, "'gradwire_plan' is the format's version: expected 1");
  if (version.count != kVersion) {
    refuse_line(version.line,
                fmt::format("this plan has version {}; only {} is known", version.count, kVersion));
  }
  Plan plan;
  if (const LocatedJson* const layers = root.find("layers")) {
    require(*layers, Kind::list, "'layers' is a list: expected one");
    for (const LocatedJson& entry : layers->list) {
      check_keys(entry, "an entry of layers", {"layers", "way", "reason", "stages"});
      std::string name = text_member(entry, "layers", "an entry of layers");
      if (std::ranges::find(plan.layers, name, &LayerPlan::layers) != plan.layers.end()) {
        refuse_line(entry.line, fmt::format("there is an entry for '{}' before: leave one", name));
      }
      plan.layers.push_back(
          {std::move(name), read_stages(entry, "an entry of layers without stages")});
    }
  }
  if (const LocatedJson* const otherwise = root.find("default")) {
    check_keys(*otherwise, "the default", {"way", "reason", "stages"});
    plan.otherwise = read_stages(*otherwise, "a default without stages");
  }
  return plan;
}

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
    return parse(text);
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
                     kVersion, listed, written(otherwise));
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
  for (const LayerPlan& entry : layers) {
    const auto matched = [&](const std::string& name) {
      return name == entry.layers || matches(entry.layers, name);
    };
    if (std::ranges::any_of(names, matched)) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("no layer matches '{}' of the plan; there are, for instance, {}", entry.layers,
                    fmt::join(names.first(std::min<std::size_t>(names.size(), 5)), ", ")));
  }
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
