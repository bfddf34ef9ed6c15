#include "plan/buckets.h"

namespace gradwire {

Workload in_buckets(const Workload& workload, const BucketSizes& sizes) {
  Workload handed_over = workload;
  auto& tensors = handed_over.tensors;
  std::size_t first = 0;  // of the bucket
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].elements * sizeof(float);
    const bool full = bytes >= (first == 0 ? sizes.first : sizes.others);
    if (!full && i + 1 < tensors.size()) continue;
    for (std::size_t each = first; each < i; ++each) {
      tensors[each].ready_seconds = tensors[i].ready_seconds;
    }
    first = i + 1;
    bytes = 0;
  }
  return handed_over;
}

}  // namespace gradwire
