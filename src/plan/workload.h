// What a model asks of the network: its tensors, and when in a step their gradients are ready.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

struct WorkloadTensor {
  std::string name;
  std::size_t elements = 0;
  double ready_seconds = 0;  ///< after backward has begun

  friend bool operator==(const WorkloadTensor&, const WorkloadTensor&) = default;
};

struct Workload {
  std::string name;
  /// In the order in which they are ready.
  std::vector<WorkloadTensor> tensors;
  double forward_seconds = 0;   ///< and whatever else of a step no exchange can hide behind
  double backward_seconds = 0;  ///< not before the last tensor is ready

  double compute_seconds() const noexcept { return forward_seconds + backward_seconds; }

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Reads the text of a JSON file as docs/plan.md has it. Throws `Error(invalid_argument)` that
/// names the line and says what is wrong: an unknown key, a time that is negative or not finite, a
/// tensor that is twice there, none at all.
Workload parse_workload(std::string_view text);
std::string text_of(const Workload& workload);

}  // namespace gradwire
