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

/// Elements that a tensor may have: more are taken for a mistake.
inline constexpr std::size_t kMostElements = std::size_t{1} << 40;

/// Reads the text of a JSON file as docs/workload.md has it. Tensors in another order are sorted by
/// the time at which they are ready. Throws `Error(invalid_spec)`, as plans do, that names the line
/// and says what is wrong: an unknown key, a time that is negative or not finite, a tensor that is
/// twice there, none at all.
Workload parse_workload(std::string_view text);

/// `parse_workload` reads the same from it.
std::string text_of(const Workload& workload);

}  // namespace gradwire
