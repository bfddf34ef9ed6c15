#include "plan/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "plan/json_fields.h"
#include "plan/located_json.h"

namespace gradwire {
namespace {

using Kind = LocatedJson::Kind;

constexpr std::uint64_t kWorkloadVersion = 1;  // of the format

void check_version(const LocatedJson& root) {
  const LocatedJson& version = member(root, "gradwire_workload", "a workload");
  require(version, Kind::count, "'gradwire_workload' is the format's version: expected 1");
  if (version.count != kWorkloadVersion) {
    refuse_at(version.place, fmt::format("this workload has version {}; only {} is known",
                                         version.count, kWorkloadVersion));
  }
}

std::size_t read_elements(const LocatedJson& object) {
  const LocatedJson& elements = member(object, "elements", "a tensor");
  require(elements, Kind::count, "'elements' is a whole number from 1 on: expected one");
  if (elements.count == 0 || elements.count > kMostElements) {
    refuse_at(elements.place,
              fmt::format("'elements' is {}: a tensor has 1 to {}", elements.count, kMostElements));
  }
  return elements.count;
}

WorkloadTensor read_tensor(const LocatedJson& object, double backward_seconds) {
  check_keys(object, "a tensor", {"name", "elements", "ready_seconds"});
  WorkloadTensor tensor{.name = text_member(object, "name", "a tensor"),
                        .elements = read_elements(object),
                        .ready_seconds = number_member(object, "ready_seconds", "a tensor")};
  if (tensor.name.empty()) refuse_at(object.place, "this tensor's name is empty: give it one");
  if (tensor.ready_seconds > backward_seconds) {
    refuse_at(object.place,
              fmt::format("'{}' is ready after {} seconds, and backward takes {}: give a longer "
                          "'backward_seconds' or an earlier 'ready_seconds'",
                          tensor.name, tensor.ready_seconds, backward_seconds));
  }
  return tensor;
}

}  // namespace

Workload parse_workload(std::string_view text) {
  const LocatedJson root = parse_located_json(text);
  check_keys(root, "a workload",
             {"gradwire_workload", "name", "forward_seconds", "backward_seconds", "tensors"});
  check_version(root);
  Workload workload{.name = text_member(root, "name", "a workload"),
                    .tensors = {},
                    .forward_seconds = number_member(root, "forward_seconds", "a workload"),
                    .backward_seconds = number_member(root, "backward_seconds", "a workload")};
  const LocatedJson& tensors = member(root, "tensors", "a workload");
  require(tensors, Kind::list, "'tensors' is a list: expected one");
  if (tensors.list.empty()) refuse_at(tensors.place, "'tensors' is empty: give at least one");
  std::set<std::string> names;
  for (const LocatedJson& object : tensors.list) {
    WorkloadTensor tensor = read_tensor(object, workload.backward_seconds);
    if (!names.insert(tensor.name).second) {
      refuse_at(object.place, fmt::format("there is a tensor '{}' before: leave one", tensor.name));
    }
    workload.tensors.push_back(std::move(tensor));
  }
  std::ranges::stable_sort(workload.tensors, {}, &WorkloadTensor::ready_seconds);
  return workload;
}

std::string text_of(const Workload& workload) {
  std::vector<std::string> lines;
  for (const WorkloadTensor& tensor : workload.tensors) {
    lines.push_back(fmt::format("    {{\"name\": {}, \"elements\": {}, \"ready_seconds\": {}}}",
                                quoted(tensor.name), tensor.elements, tensor.ready_seconds));
  }
  return fmt::format(
      "{{\n  \"gradwire_workload\": {},\n  \"name\": {},\n  \"forward_seconds\": {},\n"
      "  \"backward_seconds\": {},\n  \"tensors\": [\n{}\n  ]\n}}\n",
      kWorkloadVersion, quoted(workload.name), workload.forward_seconds, workload.backward_seconds,
      fmt::join(lines, ",\n"));
}

}  // namespace gradwire
