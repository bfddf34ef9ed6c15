#include "plan/plan_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "gradwire/error.h"
#include "plan/json_fields.h"

namespace gradwire {
namespace {

using Kind = LocatedJson::Kind;

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
    refuse_at(object.find("way")->place, error.what());
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
      refuse_at(entry.find(key)->place,
                fmt::format("'{}' stands beside 'stages': put it into one of them", key));
    }
  }
  require(*listed, Kind::list, "'stages' is a list: expected one");
  if (listed->list.empty()) refuse_at(listed->place, "'stages' is empty: give at least one");
  std::vector<Stage> stages;
  for (const LocatedJson& object : listed->list) {
    check_keys(object, "a stage", {"from_step", "way", "reason"});
    const Stage stage = read_stage(object, "a stage");
    if (stages.empty() && stage.from_step != 0) {
      refuse_at(object.place, "the first stage is from step 0 on");
    }
    if (!stages.empty() && stage.from_step <= stages.back().from_step) {
      refuse_at(object.place, fmt::format("this stage is from step {} on, and the one before from "
                                          "{}: give later steps later",
                                          stage.from_step, stages.back().from_step));
    }
    stages.push_back(stage);
  }
  return stages;
}

}  // namespace

Plan read_plan(const LocatedJson& root) {
  check_keys(root, "a plan", {"gradwire_plan", "layers", "default"});
  const LocatedJson& version = member(root, "gradwire_plan", "a plan");
  require(version, Kind::count, "'gradwire_plan' is the format's version: expected 1");
  if (version.count != kPlanVersion) {
    refuse_at(version.place, fmt::format("this plan has version {}; only {} is known",
                                         version.count, kPlanVersion));
  }
  Plan plan;
  if (const LocatedJson* const layers = root.find("layers")) {
    require(*layers, Kind::list, "'layers' is a list: expected one");
    for (const LocatedJson& entry : layers->list) {
      check_keys(entry, "an entry of layers", {"layers", "way", "reason", "stages"});
      std::string name = text_member(entry, "layers", "an entry of layers");
      if (std::ranges::find(plan.layers, name, &LayerPlan::layers) != plan.layers.end()) {
        refuse_at(entry.place, fmt::format("there is an entry for '{}' before: leave one", name));
      }
      plan.layers.push_back(
          {std::move(name), read_stages(entry, "an entry of layers without stages"), entry.place});
    }
  }
  if (const LocatedJson* const otherwise = root.find("default")) {
    check_keys(*otherwise, "the default", {"way", "reason", "stages"});
    plan.otherwise = read_stages(*otherwise, "a default without stages");
  }
  return plan;
}

}  // namespace gradwire
