#include "plan/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "plan/plan_test_complaint.h"

namespace gradwire {
namespace {

using Events = std::vector<std::string>;

// Events as torch 2.13 writes them, times in microseconds.

std::string event(const std::string& category, const std::string& name, double begin,
                  double duration, const std::string& args, int thread = 7) {
  return fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 7, "tid": {}, "ts": {}, "dur": {}, )"
      R"("args": {{{}}}}})",
      category, name, thread, begin, duration, args);
}

std::string operation(const std::string& name, double begin, double duration, int id = 1) {
  return event("cpu_op", name, begin, duration, fmt::format(R"("External id": {})", id));
}

std::string node(double begin, double duration, int sequence, int thread = 7) {
  return event(
      "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin, duration,
      fmt::format(R"("External id": 1, "Sequence number": {}, "Fwd thread id": 1)", sequence),
      thread);
}

std::string gradient(double begin, double duration, const std::string& dims) {
  return event(
      "cpu_op", "torch::autograd::AccumulateGrad", begin, duration,
      fmt::format(R"("External id": 2, "Input Dims": [{}], "Input type": ["float"])", dims));
}

std::string trace(const Events& events) {
  return fmt::format(R"({{"schemaVersion": 1, "record_shapes": 1, "deviceProperties": [{{"id": 0}}],
                         "traceEvents": [{}], "traceName": "t.json"}})",
                     fmt::join(events, ",\n"));
}

/// A step: 100 us of forward, a node of 10 us from `begin` + 100 on, its gradients, another node.
Events step(double begin, int sequence, double slower = 0) {
  return {
      operation("aten::linear", begin, 100),
      node(begin + 100, 10, sequence + 1),
      gradient(begin + 112, 2, "[10]"),
      gradient(begin + 116, 2, "[10, 288]"),
      node(begin + 120, 40 + slower, sequence),
      gradient(begin + 162 + slower, 8, "[8, 3, 3, 3]"),
      event("user_annotation", "Optimizer.step#SGD.step", begin + 170 + slower, 30 - slower, "")};
}

Events together(Events first, const Events& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Events with(Events events, const std::string& more) { return together(std::move(events), {more}); }

void expect_near(const Workload& workload, const std::vector<WorkloadTensor>& tensors) {
  ASSERT_EQ(workload.tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(workload.tensors[i].name, tensors[i].name);
    EXPECT_EQ(workload.tensors[i].elements, tensors[i].elements);
    EXPECT_NEAR(workload.tensors[i].ready_seconds, tensors[i].ready_seconds, 1e-12);
  }
}

std::string complaint(const std::string& text) {
  return complaint_of([&] { profile_workload(text); }, ErrorCode::invalid_spec);
}

TEST(Profile, gradients_are_timed_from_the_begin_of_backward) {
  const Workload workload = profile_workload(trace(step(1000, 5)));
  expect_near(workload,
              {{"1: 10", 10, 14e-6}, {"2: 10x288", 2880, 18e-6}, {"3: 8x3x3x3", 216, 70e-6}});
  EXPECT_NEAR(workload.backward_seconds, 70e-6, 1e-12);
  EXPECT_NEAR(workload.forward_seconds, 130e-6, 1e-12) << "what of the step is not backward";
  EXPECT_EQ(parse_workload(text_of(workload)), workload);
}

TEST(Profile, steps_are_averaged) {
  const Events steps = together(step(1000, 5), step(1200, 15, 20));
  const Workload workload = profile_workload(trace(steps));
  expect_near(workload,
              {{"1: 10", 10, 14e-6}, {"2: 10x288", 2880, 18e-6}, {"3: 8x3x3x3", 216, 80e-6}});
  EXPECT_NEAR(workload.backward_seconds, 80e-6, 1e-12);
  EXPECT_NEAR(workload.forward_seconds, 120e-6, 1e-12);
}

TEST(Profile, events_come_in_any_order) {
  Events events = together(step(1000, 5), step(1200, 15));
  const Workload expected = profile_workload(trace(events));
  std::ranges::reverse(events);
  EXPECT_EQ(profile_workload(trace(events)), expected);
}

// A checkpoint runs forward and backward again, whose functions are younger than all before.
TEST(Profile, a_backward_pass_inside_a_function_belongs_to_it) {
  Events events = step(1000, 5);
  const Workload expected = profile_workload(trace(events));
  events.push_back(node(1125, 10, 99));
  EXPECT_EQ(profile_workload(trace(events)), expected);
}

TEST(Profile, a_pass_without_gradients_counts_as_forward) {
  const Workload workload = profile_workload(trace(with(step(1000, 5), node(1010, 20, 2))));
  EXPECT_NEAR(workload.backward_seconds, 70e-6, 1e-12);
  EXPECT_EQ(workload.tensors.size(), 3u);
}

TEST(Profile, a_scalar_has_one_element) {
  const Workload workload =
      profile_workload(trace({node(0, 10, 1), gradient(12, 1, "[]"), gradient(14, 1, "[1, 4]")}));
  EXPECT_EQ(workload.tensors[0].name, "1: scalar");
  EXPECT_EQ(workload.tensors[0].elements, 1u);
  EXPECT_EQ(workload.tensors[1].elements, 4u);
}

TEST(Profile, other_events_do_not_count) {
  const Workload expected = profile_workload(trace(step(1000, 5)));
  const Events others{R"({"ph": "M", "name": "process_name", "args": {"name": "python"}})",
                      event("python_function", "nn.Module: Linear", 0, 90000, ""),
                      event("Trace", "PyTorch Profiler (0)", 0, 90000, R"("Op count": 0)"),
                      R"({"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 3, "ts": 1100})"};
  EXPECT_EQ(profile_workload(trace(together(step(1000, 5), others))), expected);
}

// The host launches within 70 us what the GPU works at until 900.
TEST(Profile, gradients_of_a_gpu_are_ready_when_its_kernels_are_through) {
  const auto kernel = [](double begin, double duration, int id) {
    return event("kernel", "volta_sgemm", begin, duration, fmt::format(R"("External id": {})", id));
  };
  const Events launches{operation("aten::mm", 50, 10, 10), operation("aten::mm", 105, 3, 11),
                        operation("aten::mm", 125, 3, 12)};
  const Events kernels{
      kernel(60, 240, 10), kernel(300, 200, 11), kernel(500, 400, 12),
      event("kernel", "ncclDevKernel_AllReduce", 510, 5000, R"("External id": 12)")};
  Events events = together(step(0, 5), together(launches, kernels));
  const Workload workload = profile_workload(trace(events));
  expect_near(workload,
              {{"1: 10", 10, 200e-6}, {"2: 10x288", 2880, 200e-6}, {"3: 8x3x3x3", 216, 600e-6}});
  EXPECT_NEAR(workload.backward_seconds, 600e-6, 1e-12);
  std::ranges::reverse(events);
  EXPECT_EQ(profile_workload(trace(events)), workload);
}

TEST(Profile, what_a_trace_lacks_is_said_in_one_sentence) {
  struct Bad {
    std::string text;
    const char* why;
  };
  const std::string gradient_without_shape =
      event("cpu_op", "torch::autograd::AccumulateGrad", 20, 1, R"("External id": 2)");
  const Bad cases[] = {
      {"", "the trace is no JSON: was it cut off, or is it compressed?"},
      {trace(step(0, 5)).substr(0, 500),
       "the trace is no JSON: was it cut off, or is it compressed?"},
      {"[]", "the file has no 'traceEvents': give what torch.profiler's export_chrome_trace wrote"},
      {R"({"gradwire_workload": 1})",
       "the file has no 'traceEvents': give what torch.profiler's export_chrome_trace wrote"},
      {trace({operation("aten::linear", 0, 10)}),
       "the trace has no event 'torch::autograd::AccumulateGrad': trace training steps, with the "
       "activity CPU"},
      {trace({node(0, 10, 1), gradient_without_shape}),
       "the trace has no shapes: record it with torch.profiler.profile(record_shapes=True)"},
      {trace({node(0, 10, 1), gradient(12, 1, "")}),
       "the trace has no shapes: record it with torch.profiler.profile(record_shapes=True)"},
      {trace({node(0, 10, 1), gradient(12, 1, "[3, -1]")}),
       "the trace has a gradient of shape [3,-1]"},
      {trace({node(0, 10, 1), gradient(12, 1, "[3, 0]")}),
       "the trace has a gradient of shape 3x0: a tensor has 1 to 1099511627776 elements"},
      {trace({node(0, 10, 1), gradient(12, 1, "[9999999999, 9999999999]")}),
       "the trace has a gradient of shape 9999999999x9999999999: a tensor has 1 to 1099511627776 "
       "elements"},
      {trace(with(step(0, 5), operation("aten::add", 0, -3))),
       "the trace's event 'aten::add' takes -3 microseconds, less than none"},
      {trace(with(step(0, 5), operation("aten::add", 1e300, 3))),
       "the trace's event 'aten::add' has 1e+300 as its 'ts', which is no time"},
      {trace(with(step(0, 5), R"({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": "1"})")),
       "the trace's event 'aten::add' has no time 'ts'"},
      {trace(with(step(0, 5), node(105, 20, 7))),
       "the trace has functions of backward that overlap on thread 7: no profiler writes that"},
      {trace(with(step(100, 5), gradient(3, 1, "[2]"))),
       "the trace has a gradient before any backward pass has begun: trace whole steps"},
      {trace(with(together(step(0, 5), step(200, 15)), gradient(375, 1, "[2]"))),
       "backward pass 1 of the trace has 3 gradients, and pass 2 has 4: trace steps that are "
       "alike"},
      {trace({node(0, 10, 1), gradient(12, 1, "[2]"), node(20, 10, 2), gradient(32, 1, "[3, 3]")}),
       "gradient 1 is 2 in backward pass 1 of the trace, and 3x3 in pass 2: trace steps that are "
       "alike"},
  };
  for (const Bad& bad : cases) EXPECT_EQ(complaint(bad.text), bad.why);
}

TEST(Profile, functions_of_several_threads_may_overlap) {
  EXPECT_EQ(complaint(trace(with(step(0, 5), node(105, 20, 4, 8)))), "");
}

RC_GTEST_PROP(Profile, any_text_is_refused_in_words, (const std::string& text)) {
  RC_ASSERT(!complaint(text).empty());
}

}  // namespace
}  // namespace gradwire
