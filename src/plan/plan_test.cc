#include "gradwire/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "gradwire/error.h"
#include "plan/plan_reader.h"
#include "plan/plan_test_complaint.h"

namespace gradwire {
namespace {

constexpr const char* kExample = R"({
  "gradwire_plan": 1,
  "layers": [
    {"layers": "head.weight", "way": "none", "reason": "the last layer's errors \"count\""},
    {"layers": "blocks.[0-3].*", "stages": [
      {"from_step": 0, "way": "none"},
      {"from_step": 300, "way": "topk:density=0.001+feedback:momentum=0.9", "reason": "later"}
    ]}
  ],
  "default": {"way": "grid:step=0.5"}
})";

TEST(Plan, layers_take_the_first_that_matches) {
  const Plan plan = Plan::parse(kExample);
  EXPECT_EQ(plan.stages_of("head.weight")[0].way, Way{});
  EXPECT_EQ(plan.stages_of("head.weight")[0].reason, "the last layer's errors \"count\"");
  EXPECT_EQ(plan.stages_of("blocks.3.mlp.weight").size(), 2u);
  EXPECT_EQ(plan.stages_of("blocks.4.mlp.weight")[0].way, Way::parse("grid:step=0.5"));
  EXPECT_EQ(plan.stages_of("")[0].way, Way::parse("grid:step=0.5"));
}

TEST(Plan, a_layers_very_name_holds_before_patterns) {
  const Plan plan{.layers = {{"w[0]", {{0, Way::parse("fp16"), ""}}},
                             {"w*", {{0, Way::parse("bf16"), ""}}},
                             {"w0", {{0, Way::parse("sign"), ""}}}}};
  EXPECT_EQ(plan.stages_of("w[0]")[0].way, Way::parse("fp16"));
  EXPECT_EQ(plan.stages_of("w0")[0].way, Way::parse("sign"));
  EXPECT_EQ(plan.stages_of("w1")[0].way, Way::parse("bf16"));
}

TEST(Plan, a_stage_holds_from_its_step_on) {
  const Plan plan = Plan::parse(kExample);
  const std::vector<Stage>& stages = plan.stages_of("blocks.0.weight");
  for (const std::uint64_t step : {0, 1, 299}) EXPECT_EQ(stage_at(stages, step).from_step, 0u);
  for (const std::uint64_t step : {300, 301}) EXPECT_EQ(stage_at(stages, step).from_step, 300u);
}

TEST(Plan, what_is_left_out_is_exact) {
  EXPECT_EQ(Plan::parse(R"({"gradwire_plan": 1})"), Plan{});
  EXPECT_EQ(Plan{}.stages_of("any")[0].way, Way{});
}

TEST(Plan, is_written_as_it_is_read) {
  const Plan plan = Plan::parse(kExample);
  EXPECT_EQ(Plan::parse(plan.json()), plan);
  EXPECT_EQ(Plan::parse(plan.json()).json(), plan.json());
  EXPECT_EQ(Plan::parse(Plan{}.json()), Plan{});
}

TEST(Plan, mistakes_are_named_with_their_line) {
  struct Bad {
    const char* text;
    const char* begins;
    std::vector<const char*> named;
  };
  const Bad cases[] = {
      {"", "line 1", {"no JSON"}},
      {"[]", "line 1", {"a plan is an object", "a list"}},
      {"{}", "line 1", {"a plan needs 'gradwire_plan'"}},
      {"{\"gradwire_plan\": 1", "line 1", {"no JSON"}},
      {"{\"gradwire_plan\": 1,\n\"layers\": [,]}", "line 2", {"no JSON"}},
      {"{\n\"gradwire_plan\": 2\n}", "line 2", {"version 2", "only 1"}},
      {"{\n\"gradwire_plan\": \"1\"\n}", "line 2", {"expected 1", "not \"1\""}},
      {"{\"gradwire_plan\": 1,\n\n\"layer\": []}", "line 3", {"'layer'", "layers, default"}},
      {"{\"gradwire_plan\": 1,\n\"layers\": [],\n\"layers\": []}", "line 3", {"'layers'", "twice"}},
      {"{\"gradwire_plan\": 1, \"layers\": {}}", "line 1", {"'layers' is a list", "an object"}},
      {"{\"gradwire_plan\": 1, \"layers\": [\n\"x\"]}", "line 2", {"an entry", "x"}},
      {"{\"gradwire_plan\": 1, \"layers\": [\n{\"layers\": \"x\"}]}", "line 2", {"needs 'way'"}},
      {"{\"gradwire_plan\": 1, \"layers\": [\n{\"way\": \"none\"}]}", "line 2", {"needs 'layers'"}},
      {"{\"gradwire_plan\": 1, \"layers\": [{\"layers\": 7,\n\"way\": \"none\"}]}",
       "line 1",
       {"'layers' is a text", "7"}},
      {"{\"gradwire_plan\": 1, \"layers\": [{\"layers\": \"a\", \"way\": \"none\"},\n{\"layers\": "
       "\"a\", \"way\": \"none\"}]}",
       "line 2",
       {"'a'", "before"}},
      {"{\"gradwire_plan\": 1,\n\"default\": {\"way\": \"s\xffgn\"}}", "line 2", {"UTF-8", "s?"}},
      {"{\"gradwire_plan\": 1, \"default\": {\n\"wya\": \"none\"}}",
       "line 2",
       {"'wya'", "way, reason, stages"}},
      {"{\"gradwire_plan\": 1, \"default\": {\n\"way\":\n\"unifrom\"}}",
       "line 2",
       {"unifrom", "uniform"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"way\": \"none\",\n\"reason\": null}}",
       "line 2",
       {"'reason' is a text", "null"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"stages\": [],\n\"way\": \"none\"}}",
       "line 2",
       {"'way'", "beside 'stages'"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"stages\": []}}", "line 1", {"empty"}},
      {"{\"gradwire_plan\": 1,\n\"default\": {\"way\": \"sign\\u0000\"}}",
       "line 2",
       {"'way' has a NUL byte"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"stages\": [\n{\"from_step\": 5, \"way\": "
       "\"none\"}]}}",
       "line 2",
       {"from step 0"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"stages\": [\n{\"way\": \"none\"},\n{\"way\": "
       "\"fp16\"}]}}",
       "line 3",
       {"from step 0 on", "later"}},
      {"{\"gradwire_plan\": 1, \"default\": {\"stages\": [{\"way\": \"none\"},{\"way\": \"fp16\",\n"
       "\"from_step\": -1\n}]}}",
       "line 2",
       {"'from_step' is a whole number", "-1"}},
  };
  for (const Bad& bad : cases) {
    const std::string message = complaint_of([&] { Plan::parse(bad.text); });
    EXPECT_TRUE(message.starts_with(std::string(bad.begins) + ": ")) << message << "\n" << bad.text;
    for (const char* part : bad.named) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not named: " << message;
    }
  }
}

TEST(Plan, mistakes_in_a_value_of_a_program_are_named_with_their_keys) {
  const auto message = [](const std::string& text) {
    return complaint_of([&] { static_cast<void>(read_plan(parse_located_json(text, "plan"))); });
  };
  const std::string entries = R"("layers": [{"layers": "a", "way": "none"}, )";
  EXPECT_TRUE(message(R"({"gradwire_plan": 1, )" + entries + R"({"layers": "b", "way": "sgn"}]})")
                  .starts_with("plan['layers'][1]['way']: unknown codec"));
  EXPECT_TRUE(message(R"({"gradwire_plan": 1, )" + entries + R"({"layers": NaN}]})")
                  .starts_with("plan['layers'][1]: this is no JSON"));
  EXPECT_TRUE(message("{}").starts_with("plan: a plan needs"));
}

TEST(Plan, brackets_without_end_are_refused) {
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += bracket;
    EXPECT_NE(complaint_of([&] { Plan::parse(text); }).find("too many brackets"),
              std::string::npos);
  }
}

TEST(Plan, a_pattern_that_matches_nothing_is_refused) {
  const std::vector<std::string> names{"head.weight", "blocks.0.weight", "blocks.9.weight"};
  const Plan plan = Plan::parse(kExample);
  EXPECT_NO_THROW(plan.check_matches(names));
  const std::string message =
      complaint_of([&] { plan.check_matches(std::span(names).subspan(1)); });
  EXPECT_NE(message.find("'head.weight'"), std::string::npos) << message;
  EXPECT_NE(message.find("blocks.0.weight, blocks.9.weight"), std::string::npos) << message;
}

TEST(Plan, all_patterns_that_match_nothing_are_named_with_their_lines) {
  const std::vector<std::string> names{"head.weight"};
  const char* text =
      "{\"gradwire_plan\": 1, \"layers\": [\n"
      "{\"layers\": \"haed.*\", \"way\": \"none\"},\n"
      "{\"layers\": \"head.*\", \"way\": \"none\"},\n"
      "{\"layers\": \"bodi\", \"way\": \"none\"}]}";
  EXPECT_EQ(complaint_of([&] { Plan::parse(text).check_matches(names); }),
            "no layer matches 'haed.*' (line 2), 'bodi' (line 4) of the plan; there are, for "
            "instance, head.weight");
  Plan moved = Plan::parse(text);
  moved.layers[0].place = "line 99";
  EXPECT_EQ(moved, Plan::parse(text)) << "a place is no part of a plan";
  EXPECT_EQ(moved.json(), Plan::parse(text).json());
  moved.layers.resize(1);
  moved.layers[0].place = "";
  EXPECT_NE(complaint_of([&] { moved.check_matches(names); }).find("'haed.*' of"),
            std::string::npos);
}

TEST(Plan, values_that_no_text_gives_are_refused) {
  const auto with = [](std::vector<Stage> stages) {
    return complaint_of([&] { Plan{.layers = {{"x", std::move(stages)}}}.check(); });
  };
  EXPECT_EQ(with({{0, {}}, {1, {}}}), "");
  EXPECT_NE(with({}), "");
  EXPECT_NE(with({{1, {}}}), "");
  EXPECT_NE(with({{0, {}}, {3, {}}, {3, {}}}), "");
  EXPECT_NE(with({{0, Way{.route = "snake"}}}), "");
}

TEST(Plan, a_file_is_named) {
  EXPECT_NE(complaint_of([] { Plan::read("/tmp"); }).find("/tmp: it is a directory"),
            std::string::npos);
  EXPECT_NE(complaint_of([] { Plan::read("/no/such/plan.json"); }).find("/no/such/plan.json"),
            std::string::npos);
}

RC_GTEST_PROP(Plan, any_text_parses_or_is_refused_in_words, (const std::string& text)) {
  const std::string message = complaint_of([&] { Plan::parse(text); });
  RC_ASSERT(message.starts_with("line "));
}

}  // namespace
}  // namespace gradwire
