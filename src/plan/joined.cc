#include "plan/joined.h"

#include <utility>

namespace gradwire {
namespace {

constexpr std::size_t kSmallElements = 1 << 14;

}  // namespace

Joined join_small(const Workload& workload) {
  Joined joined;
  joined.workload = workload;
  joined.workload.tensors.clear();
  std::size_t waiting = 0;  // elements
  for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
    WorkloadTensor tensor = workload.tensors[i];
    joined.group_of.push_back(joined.workload.tensors.size());
    const bool last = i + 1 == workload.tensors.size();
    if (tensor.elements < kSmallElements && !last) {
      waiting += tensor.elements;
      continue;
    }
    tensor.elements += std::exchange(waiting, 0);
    joined.workload.tensors.push_back(std::move(tensor));
    joined.leader_of.push_back(i);
  }
  return joined;
}

}  // namespace gradwire
