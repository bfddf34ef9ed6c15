// Small tensors travel with the next large one, in its messages, and no codec is chosen for them.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/workload.h"

namespace gradwire {

/// Groups of tensors that travel together. What is planned and forecast are the groups.
struct Joined {
  Workload workload;                  ///< its tensors are groups
  std::vector<std::size_t> group_of;  ///< by tensor
  /// By group: the tensor by which it is named, and whose way it takes. It is ready last.
  std::vector<std::size_t> leader_of;
};

Joined join_small(const Workload& workload);

}  // namespace gradwire
