#include "plan/bucket_steps.h"

#include <algorithm>

#include "plan/buckets.h"

namespace gradwire {
namespace {

constexpr double kEqual = 1e-3;  // of a step

}  // namespace

Workload in_buckets_of(const Workload& workload, std::size_t mebibytes) {
  const std::size_t bytes = mebibytes << 20U;
  return in_buckets(workload, {.first = std::min(BucketSizes{}.first, bytes), .others = bytes});
}

std::vector<BucketStep> steps_by_bucket(const Workload& workload, const Cluster& cluster,
                                        const Costs& costs, const SelectionOptions& options,
                                        std::span<const std::size_t> sizes) {
  std::vector<BucketStep> steps;
  for (const std::size_t mebibytes : sizes) {
    const Workload handed_over = in_buckets_of(workload, mebibytes);
    steps.push_back({mebibytes, select(handed_over, cluster, costs, options).step_seconds});
  }
  return steps;
}

const BucketStep& best_of(std::span<const BucketStep> steps) {
  const double least = std::ranges::min(steps, {}, &BucketStep::step_seconds).step_seconds;
  return *std::ranges::find_if(
      steps, [&](const BucketStep& each) { return each.step_seconds <= least * (1 + kEqual); });
}

}  // namespace gradwire
