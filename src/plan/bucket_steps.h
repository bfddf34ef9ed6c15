// Which size of DDP's buckets makes a step shortest.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plan/selection.h"
#include "plan/workload.h"

namespace gradwire {

struct BucketStep {
  std::size_t mebibytes = 0;  ///< `bucket_cap_mb`
  double step_seconds = 0;    ///< with the ways that are selected for it
};

/// `bucket_cap_mb` of these mebibytes, as DDP has it: the first bucket is of 1 MiB, or less.
Workload in_buckets_of(const Workload& workload, std::size_t mebibytes);

/// Selects for each size.
std::vector<BucketStep> steps_by_bucket(const Workload& workload, const Cluster& cluster,
                                        const Costs& costs, const SelectionOptions& options,
                                        std::span<const std::size_t> sizes);

/// The shortest, and of equal ones, to a thousandth, the first. There is one at least.
const BucketStep& best_of(std::span<const BucketStep> steps);

}  // namespace gradwire
