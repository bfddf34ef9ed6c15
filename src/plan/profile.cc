#include "plan/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "gradwire/error.h"

namespace gradwire {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kNode = "autograd::engine::evaluate_function: ";
constexpr std::string_view kGradient = "torch::autograd::AccumulateGrad";
constexpr double kSecondsPerUnit = 1e-6;
constexpr double kRounding = 0.01;  // Times have nanoseconds, in units of a microsecond.

constexpr double kLatest = 1e18;  // Thousands of years: sums and differences stay finite.

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::invalid_spec, why); }

/// Null where `object` is none, has no such member, or one of another type.
template <class Type>
const Type* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<const Type*>();
}

std::string_view find_text(const Json& object, const char* key) {
  const auto* const text = find<std::string>(object, key);
  return text == nullptr ? std::string_view() : *text;
}

std::optional<std::int64_t> find_number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

double time_of(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number()) {
    refuse(fmt::format("the trace's event '{}' has no time '{}'", find_text(event, "name"), key));
  }
  const double time = found->get<double>();
  if (std::abs(time) > kLatest) {
    refuse(fmt::format("the trace's event '{}' has {} as its '{}', which is no time",
                       find_text(event, "name"), time, key));
  }
  return time;
}

using Shape = std::vector<std::size_t>;

/// "64x3x3x3".
std::string text_of(const Shape& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

Shape shape_of(const Json& args) {
  const auto* const dims = find<Json::array_t>(args, "Input Dims");
  if (dims == nullptr || dims->empty() || !dims->front().is_array()) {
    refuse("the trace has no shapes: record it with torch.profiler.profile(record_shapes=True)");
  }
  Shape shape;
  for (const Json& size : dims->front()) {
    if (!size.is_number_unsigned()) {
      refuse(fmt::format("the trace has a gradient of shape {}", dims->front().dump()));
    }
    shape.push_back(size.get<std::size_t>());
  }
  return shape;
}

std::size_t elements_of(const Shape& shape) {
  std::size_t elements = 1;
  for (const std::size_t size : shape) {
    if (size == 0 || size > kMostElements / elements) {
      refuse(fmt::format("the trace has a gradient of shape {}: a tensor has 1 to {} elements",
                         text_of(shape), kMostElements));
    }
    elements *= size;
  }
  return elements;
}

struct Span {
  double begin = 0;
  double end = 0;
};

/// One evaluation of a function by autograd.
struct Node : Span {
  std::string thread;
  /// When in forward the function came about; none for the adding up of gradients.
  std::optional<std::int64_t> sequence;
};

struct Gradient {
  double ready = 0;
  Shape shape;
};

struct Kernel : Span {
  double launch = 0;  ///< when on the host
};

/// What of a trace counts, in units of the trace.
struct Trace {
  Span all{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  std::vector<Node> nodes;
  std::vector<Gradient> gradients;
  std::vector<Kernel> kernels;
};

/// Takes events one by one, so that a trace of gigabytes is never there as a whole.
class TraceReader {
 public:
  void take(const Json& event) {
    if (find_text(event, "ph") != "X") return;
    const std::string_view category = find_text(event, "cat");
    const bool kernel = category == "kernel";
    if (category != "cpu_op" && category != "user_annotation" && !kernel) return;
    const Span span = span_of(event);
    trace_.all = {std::min(trace_.all.begin, span.begin), std::max(trace_.all.end, span.end)};
    const auto args = event.find("args");
    const Json& details = args == event.end() ? nothing_ : *args;
    const auto id = find_number(details, "External id");
    if (kernel) {
      // Kernels of collectives run beside those that make gradients.
      if (id && !find_text(event, "name").starts_with("nccl")) kernels_.emplace_back(*id, span);
    } else {
      if (id) launches_.emplace(*id, span.begin);
      take_operation(event, span, details);
    }
  }

  Trace finish() && {
    for (const auto& [id, span] : kernels_) {
      const auto launch = launches_.find(id);
      if (launch != launches_.end()) trace_.kernels.push_back({span, launch->second});
    }
    std::ranges::stable_sort(trace_.kernels, {}, &Kernel::launch);
    std::ranges::stable_sort(trace_.nodes, {}, &Node::begin);
    return std::move(trace_);
  }

 private:
  static Span span_of(const Json& event) {
    const double begin = time_of(event, "ts"), duration = time_of(event, "dur");
    if (duration < 0) {
      refuse(fmt::format("the trace's event '{}' takes {} microseconds, less than none",
                         find_text(event, "name"), duration));
    }
    return {begin, begin + duration};
  }

  void take_operation(const Json& event, const Span& span, const Json& details) {
    const std::string_view name = find_text(event, "name");
    if (name == kGradient) {
      trace_.gradients.push_back({span.end, shape_of(details)});
    } else if (name.starts_with(kNode)) {
      const auto thread = event.find("tid");
      trace_.nodes.push_back({span, thread == event.end() ? "" : thread->dump(),
                              find_number(details, "Sequence number")});
    }
  }

  const Json nothing_ = Json::object();
  Trace trace_;
  std::unordered_map<std::int64_t, double> launches_;  // of operations, by their ids
  std::vector<std::pair<std::int64_t, Span>> kernels_;
};

Trace read_trace(std::string_view text) {
  TraceReader reader;
  bool in_events = false;
  const auto take = [&](int depth, Json::parse_event_t what, Json& parsed) {
    if (depth == 1 && what == Json::parse_event_t::key) in_events = parsed == "traceEvents";
    if (depth != 2 || what != Json::parse_event_t::object_end || !in_events) return true;
    reader.take(parsed);
    return false;
  };
  try {
    const Json root = Json::parse(text, take);
    if (!root.is_object() || !root.contains("traceEvents")) {
      refuse("the file has no 'traceEvents': give what torch.profiler's export_chrome_trace wrote");
    }
  } catch (const Json::exception&) {
    refuse("the trace is no JSON: was it cut off, or is it compressed?");
  }
  return std::move(reader).finish();
}

/// Nodes that run in no other one. A backward pass inside a node, as of checkpoints, is part of it.
std::vector<Node> outermost(const std::vector<Node>& nodes) {
  std::vector<Node> outer;
  std::map<std::string, double> busy_until;  // by thread
  for (const Node& node : nodes) {
    const auto [until, first] = busy_until.try_emplace(node.thread, node.end);
    if (first || node.begin >= until->second - kRounding) {
      until->second = node.end;
      outer.push_back(node);
    } else if (node.end > until->second + kRounding) {
      refuse(
          fmt::format("the trace has functions of backward that overlap on thread {}: no "
                      "profiler writes that",
                      node.thread));
    }
  }
  return outer;
}

struct Pass : Span {
  std::vector<Gradient> gradients;
};

/// Autograd begins with what came about last in forward: a function that is younger than all before
/// it begins the next pass.
std::vector<Pass> passes_of(const std::vector<Node>& nodes) {
  std::vector<Pass> passes;
  std::optional<std::int64_t> youngest;
  for (const Node& node : outermost(nodes)) {
    if (node.sequence > youngest) {
      youngest = node.sequence;
      passes.push_back({{node.begin, node.end}, {}});
    } else if (!passes.empty()) {
      passes.back().end = std::max(passes.back().end, node.end);
    }
  }
  return passes;
}

void put_gradients(std::vector<Pass>& passes, std::vector<Gradient> gradients) {
  for (Gradient& gradient : gradients) {
    const auto next = std::ranges::upper_bound(passes, gradient.ready, {}, &Pass::begin);
    if (next == passes.begin()) {
      refuse("the trace has a gradient before any backward pass has begun: trace whole steps");
    }
    Pass& pass = *std::prev(next);
    pass.end = std::max(pass.end, gradient.ready);
    pass.gradients.push_back(std::move(gradient));
  }
  std::erase_if(passes, [](const Pass& pass) { return pass.gradients.empty(); });
}

/// From the host's time, at which kernels are launched, to the time at which they run.
void move_to_device(Pass& pass, const std::vector<Kernel>& kernels) {
  const auto launched = [&](double time) {
    return std::ranges::upper_bound(kernels, time, {}, &Kernel::launch);
  };
  auto next = std::ranges::lower_bound(kernels, pass.begin, {}, &Kernel::launch);
  const auto last = launched(pass.end);
  if (next == last) return;
  const double first = next->begin;
  double through = first;
  std::ranges::stable_sort(pass.gradients, {}, &Gradient::ready);
  for (Gradient& gradient : pass.gradients) {
    for (const auto until = launched(gradient.ready); next < until; ++next) {
      through = std::max(through, next->end);
    }
    gradient.ready = through;
  }
  for (; next < last; ++next) through = std::max(through, next->end);
  pass.begin = first;
  pass.end = through;
}

void check_alike(const Pass& first, const Pass& other, std::size_t number) {
  const std::size_t expected = first.gradients.size(), found = other.gradients.size();
  if (expected != found) {
    refuse(
        fmt::format("backward pass 1 of the trace has {} gradients, and pass {} has {}: trace "
                    "steps that are alike",
                    expected, number, found));
  }
  for (std::size_t i = 0; i < expected; ++i) {
    if (first.gradients[i].shape == other.gradients[i].shape) continue;
    refuse(fmt::format(
        "gradient {} is {} in backward pass 1 of the trace, and {} in pass {}: "
        "trace steps that are alike",
        i + 1, text_of(first.gradients[i].shape), text_of(other.gradients[i].shape), number));
  }
}

Workload averaged(const std::vector<Pass>& passes, const Span& all) {
  const double share = kSecondsPerUnit / static_cast<double>(passes.size());
  Workload workload{.name = "profile", .tensors = {}, .forward_seconds = 0, .backward_seconds = 0};
  for (const Gradient& gradient : passes.front().gradients) {
    workload.tensors.push_back(
        {fmt::format("{}: {}", workload.tensors.size() + 1, text_of(gradient.shape)),
         elements_of(gradient.shape), 0});
  }
  for (const Pass& pass : passes) {
    check_alike(passes.front(), pass, 1 + static_cast<std::size_t>(&pass - passes.data()));
    for (std::size_t i = 0; i < pass.gradients.size(); ++i) {
      workload.tensors[i].ready_seconds += (pass.gradients[i].ready - pass.begin) * share;
    }
    workload.backward_seconds += (pass.end - pass.begin) * share;
  }
  workload.forward_seconds =
      std::max(0., (all.end - all.begin) * share - workload.backward_seconds);
  return workload;
}

}  // namespace

Workload profile_workload(std::string_view text) {
  Trace trace = read_trace(text);
  if (trace.gradients.empty()) {
    refuse(fmt::format("the trace has no event '{}': trace training steps, with the activity CPU",
                       kGradient));
  }
  std::vector<Pass> passes = passes_of(trace.nodes);
  put_gradients(passes, std::move(trace.gradients));
  for (Pass& pass : passes) {
    move_to_device(pass, trace.kernels);
    std::ranges::stable_sort(pass.gradients, {}, &Gradient::ready);
  }
  return averaged(passes, trace.all);
}

}  // namespace gradwire
