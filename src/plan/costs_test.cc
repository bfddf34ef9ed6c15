#include "plan/costs.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "gradwire/error.h"
#include "plan/plan_test_complaint.h"

namespace gradwire {
namespace {

const char* const kExample = R"({
  "gradwire_costs": 1,
  "source": "measured on \"node7\"",
  "host": "node7",
  "isa": "avx2",
  "version": "0.1",
  "inside": {"seconds": 1e-5, "seconds_per_byte": 2.5e-11, "cpu_seconds": 2e-6, "cpu_seconds_per_byte": 3e-11},
  "between": {"seconds": 4e-5, "seconds_per_byte": 8e-9, "cpu_seconds": 0, "cpu_seconds_per_byte": 0},
  "delay": 0.002, "threads": 2, "cores": 0.5,
  "interference": 1.25,
  "codecs": {
    "none": {"encode": [[1024, 0]], "decode": [[1024, 1e-6]], "bytes_per_element": 4},
    "sign": {
      "encode": [[1024, 1e-6], [2048, 3e-6]],
      "decode": [[1024, 1e-6]],
      "preparation": [[4096, 1]],
      "bytes_per_element": 0.125
    }
  }
})";

TEST(CostTable, straight_lines_between_points) {
  const CostTable table({{100, 1.0}, {200, 2.0}, {400, 6.0}});
  EXPECT_DOUBLE_EQ(table.at(100), 1);
  EXPECT_DOUBLE_EQ(table.at(150), 1.5);
  EXPECT_DOUBLE_EQ(table.at(200), 2);
  EXPECT_DOUBLE_EQ(table.at(300), 4);
}

TEST(CostTable, in_proportion_beyond_the_last_and_no_less_below_the_first) {
  const CostTable table({{100, 1.0}, {200, 2.5}});
  EXPECT_DOUBLE_EQ(table.at(800), 10);
  EXPECT_DOUBLE_EQ(table.at(1), 1);
  EXPECT_DOUBLE_EQ(CostTable().at(7), 0);
}

TEST(CostTable, noise_does_not_make_more_elements_cheaper) {
  const CostTable table({{100, 2.0}, {200, 1.0}, {400, 3.0}});
  EXPECT_DOUBLE_EQ(table.at(200), 2);
  EXPECT_DOUBLE_EQ(table.at(300), 2.5);
}

TEST(Costs, are_read_as_they_stand) {
  const Costs costs = parse_costs(kExample);
  EXPECT_EQ(costs.source, "measured on \"node7\"");
  EXPECT_EQ(costs.host, "node7");
  EXPECT_EQ(costs.isa, "avx2");
  EXPECT_EQ(costs.version, "0.1");
  EXPECT_EQ(costs.inside, (LinkCost{1e-5, 2.5e-11, 2e-6, 3e-11}));
  EXPECT_DOUBLE_EQ(costs.between.of(1000), 4e-5 + 8e-6);
  EXPECT_EQ(costs.delay, 0.002);
  EXPECT_EQ(costs.threads, 2u);
  EXPECT_EQ(costs.cores, 0.5);
  EXPECT_EQ(costs.interference, 1.25);
  EXPECT_EQ(costs.codecs.size(), 2u);
  EXPECT_DOUBLE_EQ(costs.codec(Codec::parse("sign")).encode.at(1536), 2e-6);
  EXPECT_EQ(costs.codec(Codec::parse("sign")).preparation.at(1), 1);
  EXPECT_EQ(costs.codec(Codec::parse("none")).preparation.at(1), 0);
}

TEST(Costs, a_codec_is_found_by_all_its_spellings) {
  std::string text = kExample;
  text.replace(text.find("\"sign\""), 6, "\"grid:step=0.5\"");
  const Costs costs = parse_costs(text);
  EXPECT_EQ(&costs.codec(Codec::parse("grid")), &costs.codec(Codec::parse("grid:step=0.5")));
  const std::string message = complaint_of([&] { costs.codec(Codec::parse("fp16")); });
  EXPECT_NE(message.find("gradwire calibrate --codec fp16"), std::string::npos) << message;
}

TEST(Costs, mistakes_are_named_with_their_line) {
  struct Bad {
    std::string there;    // in the example
    std::string instead;  // of its first occurrence
    const char* begins;
    std::vector<const char*> named;
  };
  const Bad cases[] = {
      {kExample, "", "line 1", {"no JSON"}},
      {kExample, "[]", "line 1", {"a file of costs is an object", "a list"}},
      {"\"gradwire_costs\": 1,", "", "line 1", {"needs 'gradwire_costs'"}},
      {"costs\": 1", "costs\": 2", "line 2", {"version 2", "only 1"}},
      {"\"host\"", "\"hots\"", "line 4", {"unknown key 'hots'", "host"}},
      {"\"avx2\"", "2", "line 5", {"'isa' is a text", "2"}},
      {"1e-5", "NaN", "line 7", {"no JSON"}},
      {"1e-5", "1e999", "line 7", {"no JSON", "1e999"}},
      {"1e-5", "-1e-5", "line 7", {"'seconds'", "-1e-5", "less than 0"}},
      {"1e-5", "null", "line 7", {"'seconds' is a number", "null"}},
      {"8e-9", "\"8e-9\"", "line 8", {"'seconds_per_byte' is a number", "\"8e-9\""}},
      {"0.002", "-0.002", "line 9", {"'delay' is -0.002", "less than 0"}},
      {"\"threads\": 2", "\"threads\": 0", "line 9", {"at least 1"}},
      {"\"threads\": 2", "\"threads\": 1.5", "line 9", {"whole number", "1.5"}},
      {"\"cores\": 0.5", "\"cores\": 0", "line 9", {"'cores' is 0", "more"}},
      {"1.25", "0.9", "line 10", {"'interference' is 0.9", "at least 1"}},
      {"\"codecs\": {", "\"codecs\": {}, \"more\": {", "line 11", {"unknown key 'more'"}},
      {"\"none\"", "\"nine\"", "line 12", {"nine", "uniform"}},
      {"[[1024, 0]]", "[]", "line 12", {"'encode' is empty"}},
      {"[[1024, 0]]", "[1024, 0]", "line 12", {"a point is a list", "1024"}},
      {"[[1024, 0]]", "[[1024]]", "line 12", {"two numbers"}},
      {"[[1024, 0]]", "[[0, 0]]", "line 12", {"0 elements", "at least 1"}},
      {"[[1024, 0]]", "[[1024, -7]]", "line 12", {"-7 seconds", "less than 0"}},
      {"[2048,", "[1024,", "line 14", {"1024 elements behind 1024", "ascending"}},
      {"\"decode\": [[1024, 1e-6]],\n", "", "line 13", {"a codec needs 'decode'"}},
      {"\"decode\": [[1024, 1e-6]],\n",
       "\"decode\": [[1, 1]], \"other_encode\": [[1, 1]],\n",
       "line 13",
       {"a codec with 'other_encode' needs 'other_decode'"}},
      {"\"bytes_per_element\": 4", "\"bytes\": 4", "line 12", {"unknown key 'bytes'"}},
      {"\"sign\"", "\"none:\"", "line 13", {"none"}},
  };
  for (const Bad& bad : cases) {
    std::string text = kExample;
    ASSERT_NE(text.find(bad.there), std::string::npos) << bad.there;
    text.replace(text.find(bad.there), bad.there.size(), bad.instead);
    const std::string message = complaint_of([&] { parse_costs(text); });
    EXPECT_TRUE(message.starts_with(std::string(bad.begins) + ": ")) << message << "\n" << text;
    for (const char* part : bad.named) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not named: " << message;
    }
  }
  std::string text = kExample;
  text.replace(text.find("\"codecs\""), std::string::npos, "\"codecs\": {}}");
  EXPECT_EQ(complaint_of([&] { parse_costs(text); }),
            "line 11: 'codecs' is empty: give at least one");
}

TEST(Costs, two_spellings_of_a_codec_are_refused) {
  std::string text = kExample;
  text.replace(text.find("\"none\""), 6, "\"grid\"");
  text.replace(text.find("\"sign\""), 6, "\"grid:step=0.5\"");
  EXPECT_EQ(complaint_of([&] { parse_costs(text); }),
            "line 13: 'grid:step=0.5' was there before: leave one");
}

double any_seconds() {
  return *rc::gen::map(rc::gen::positive<int>(), [](int n) { return n / 3e9; });
}

CostTable any_table() {
  std::vector<std::pair<std::size_t, double>> points;
  std::size_t elements = 0;
  const auto count = *rc::gen::inRange(1, 6);
  for (int i = 0; i < count; ++i) {
    elements += *rc::gen::inRange<std::size_t>(1, std::size_t{1} << 40);
    points.emplace_back(elements, any_seconds());
  }
  return CostTable(std::move(points));
}

RC_GTEST_PROP(Costs, any_costs_round_trip, ()) {
  Costs costs{.source = *rc::gen::container<std::string>(rc::gen::inRange(' ', '~')),
              .host = *rc::gen::container<std::string>(rc::gen::inRange(' ', '~')),
              .isa = "avx2",
              .version = "0.1",
              .inside = {any_seconds(), any_seconds(), any_seconds(), any_seconds()},
              .between = {any_seconds(), any_seconds(), any_seconds(), any_seconds()},
              .delay = any_seconds(),
              .threads = *rc::gen::inRange<std::size_t>(1, 65),
              .cores = any_seconds(),
              .interference = 1 + any_seconds(),
              .codecs = {}};
  for (const char* spec : {"none", "sign", "topk:density=0.01"}) {
    const bool two_devices = *rc::gen::arbitrary<bool>();
    costs.codecs.emplace(
        Codec::parse(spec).spec(),
        MeasuredCodec{.encode = any_table(),
                      .decode = any_table(),
                      .preparation = *rc::gen::arbitrary<bool>() ? any_table() : CostTable(),
                      .bytes_per_element = any_seconds(),
                      .other_encode = two_devices ? any_table() : CostTable(),
                      .other_decode = two_devices ? any_table() : CostTable()});
  }
  RC_ASSERT(parse_costs(text_of(costs)) == costs);
}

RC_GTEST_PROP(CostTable, more_elements_never_cost_less, ()) {
  const CostTable table = any_table();
  const auto a = *rc::gen::inRange<std::size_t>(0, std::size_t{1} << 43);
  const auto b = *rc::gen::inRange<std::size_t>(0, std::size_t{1} << 43);
  // Straight lines are drawn in floating point.
  RC_ASSERT(table.at(std::min(a, b)) <= table.at(std::max(a, b)) * (1 + 1e-12));
}

RC_GTEST_PROP(Costs, any_text_parses_or_is_refused_in_words, (const std::string& text)) {
  RC_ASSERT(complaint_of([&] { parse_costs(text); }).starts_with("line "));
}

}  // namespace
}  // namespace gradwire
