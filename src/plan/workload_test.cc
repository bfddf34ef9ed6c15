#include "plan/workload.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "plan/plan_test_complaint.h"

namespace gradwire {
namespace {

constexpr const char* kExample = R"({
  "gradwire_workload": 1,
  "name": "a small net",
  "forward_seconds": 0.004,
  "backward_seconds": 0.01,
  "tensors": [
    {"name": "head.bias", "elements": 10, "ready_seconds": 0.001},
    {"name": "head.weight", "elements": 5120, "ready_seconds": 0.001},
    {"name": "conv.weight", "elements": 1728, "ready_seconds": 0.01}
  ]
})";

/// What reading `text` complains about; "" when it does not.
std::string complaint(const std::string& text) {
  return complaint_of([&] { parse_workload(text); }, ErrorCode::invalid_spec);
}

/// A workload with these tensors in its lines from 2 on.
std::string with_tensors(const std::string& tensors) {
  return R"({"gradwire_workload": 1, "name": "", "forward_seconds": 1, "backward_seconds": 2,)"
         "\n\"tensors\": " +
         tensors + "}";
}

TEST(Workload, is_read_from_json) {
  const Workload workload = parse_workload(kExample);
  EXPECT_EQ(workload.name, "a small net");
  EXPECT_EQ(workload.forward_seconds, 0.004);
  EXPECT_EQ(workload.backward_seconds, 0.01);
  EXPECT_EQ(workload.compute_seconds(), 0.014);
  const std::vector<WorkloadTensor> expected{
      {"head.bias", 10, 0.001}, {"head.weight", 5120, 0.001}, {"conv.weight", 1728, 0.01}};
  EXPECT_EQ(workload.tensors, expected);
}

TEST(Workload, tensors_are_sorted_by_when_they_are_ready) {
  const Workload workload =
      parse_workload(with_tensors(R"([{"name": "late", "elements": 1, "ready_seconds": 2},
                       {"name": "b", "elements": 1, "ready_seconds": 0.5},
                       {"name": "a", "elements": 1, "ready_seconds": 0.5}])"));
  std::string order;
  for (const WorkloadTensor& tensor : workload.tensors) order += tensor.name + " ";
  EXPECT_EQ(order, "b a late ");
}

TEST(Workload, mistakes_are_named_with_their_line) {
  struct Bad {
    std::string text;
    const char* begins;
    std::vector<const char*> named;
  };
  const auto tensor = [](const std::string& members) {
    return with_tensors("[\n{" + members + "}]");
  };
  const std::string head = "{\"gradwire_workload\": 1, \"name\": \"x\",\n";
  const Bad cases[] = {
      {"", "line 1", {"no JSON"}},
      {"[]", "line 1", {"a workload is an object", "a list"}},
      {"{}", "line 1", {"a workload needs 'gradwire_workload'"}},
      {"{\n\"gradwire_workload\": 2}", "line 2", {"version 2", "only 1"}},
      {"{\n\"gradwire_workload\": \"1\"}", "line 2", {"expected 1", "not \"1\""}},
      {"{\n\"gradwire_plan\": 1}", "line 2", {"'gradwire_plan'", "gradwire_workload, name"}},
      {"{\"gradwire_workload\": 1}", "line 1", {"needs 'name'"}},
      {head + "\"forward_seconds\": 1}", "line 1", {"needs 'backward_seconds'"}},
      {head + "\"forward_seconds\": -0.5}", "line 2", {"-0.5", "less than 0"}},
      {head + "\"forward_seconds\": NaN}", "line 2", {"no JSON"}},
      {head + "\"forward_seconds\": 1e999}", "line 2", {"1e999"}},
      {head + "\"forward_seconds\": \"1\"}", "line 2", {"is a number", "\"1\""}},
      {head + "\"forward_seconds\": 1, \"backward_seconds\": 1}", "line 1", {"needs 'tensors'"}},
      {with_tensors("{}"), "line 2", {"'tensors' is a list", "an object"}},
      {with_tensors("[]"), "line 2", {"at least one"}},
      {with_tensors("[\n7]"), "line 3", {"a tensor is an object", "7"}},
      {tensor(R"("elements": 1, "ready_seconds": 0)"), "line 3", {"needs 'name'"}},
      {tensor(R"("name": "x", "ready_seconds": 0)"), "line 3", {"needs 'elements'"}},
      {tensor(R"("name": "x", "elements": 1)"), "line 3", {"needs 'ready_seconds'"}},
      {tensor(R"("name": "", "elements": 1, "ready_seconds": 0)"), "line 3", {"name is empty"}},
      {tensor(R"("name": "x", "elements": 0, "ready_seconds": 0)"), "line 3", {"is 0", "1 to"}},
      {tensor(R"("name": "x", "elements": 1.5, "ready_seconds": 0)"), "line 3", {"whole", "1.5"}},
      {tensor(R"("name": "x", "elements": -4, "ready_seconds": 0)"), "line 3", {"whole", "-4"}},
      {tensor(R"("name": "x", "elements": 9000000000000, "ready_seconds": 0)"),
       "line 3",
       {"9000000000000", "1 to 1099511627776"}},
      {tensor(R"("name": "x", "elements": 1, "ready_seconds": -1)"), "line 3", {"-1", "less"}},
      {tensor(R"("name": "x", "elements": 1, "ready_seconds": 2.5)"),
       "line 3",
       {"'x'", "2.5 seconds", "takes 2", "backward_seconds"}},
      {tensor(R"("name": "x", "elements": 1, "ready_seconds": 0, "shape": [1])"),
       "line 3",
       {"'shape'", "name, elements, ready_seconds"}},
      {with_tensors("[{\"name\": \"x\", \"elements\": 1, \"ready_seconds\": 0},\n"
                    "{\"name\": \"x\", \"elements\": 2, \"ready_seconds\": 1}]"),
       "line 3",
       {"'x'", "before"}},
  };
  for (const Bad& bad : cases) {
    const std::string message = complaint(bad.text);
    EXPECT_TRUE(message.starts_with(std::string(bad.begins) + ": ")) << message << "\n" << bad.text;
    for (const char* part : bad.named) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not named: " << message;
    }
  }
}

RC_GTEST_PROP(Workload, is_written_as_it_is_read, ()) {
  const auto seconds = rc::gen::map(rc::gen::inRange(0, 1'000'000), [](int n) { return n / 7e5; });
  Workload workload{.name = *rc::gen::string<std::string>(),
                    .tensors = {},
                    .forward_seconds = *seconds,
                    .backward_seconds = *seconds};
  std::erase_if(workload.name, [](char c) { return c <= 0; });  // NUL, and what may be no UTF-8
  for (const double share : *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(seconds))) {
    workload.tensors.push_back({"\"" + workload.name + std::to_string(workload.tensors.size()),
                                *rc::gen::inRange<std::size_t>(1, kMostElements),
                                std::min(share, workload.backward_seconds)});
  }
  std::ranges::stable_sort(workload.tensors, {}, &WorkloadTensor::ready_seconds);
  RC_ASSERT(parse_workload(text_of(workload)) == workload);
}

RC_GTEST_PROP(Workload, any_text_is_refused_in_words, (const std::string& text)) {
  RC_ASSERT(complaint(text).starts_with("line "));
}

}  // namespace
}  // namespace gradwire
