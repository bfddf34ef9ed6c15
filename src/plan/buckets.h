// Gradients that are handed over together, as PyTorch's DistributedDataParallel does it.
#pragma once

#include <cstddef>

#include "plan/workload.h"

namespace gradwire {

/// A bucket is full with the tensor by which it has so many bytes.
struct BucketSizes {
  std::size_t first = std::size_t{1} << 20;    ///< small, so that exchanging begins early
  std::size_t others = std::size_t{25} << 20;  ///< `bucket_cap_mb`
};

/// The same workload for who waits for whole buckets: a tensor is ready when the last one of its
/// bucket is. Buckets are filled in the order in which tensors are ready, as DDP does after its
/// first step.
Workload in_buckets(const Workload& workload, const BucketSizes& sizes = {});

}  // namespace gradwire
