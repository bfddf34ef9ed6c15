// This process among those that mpirun or srun started.
#pragma once

#include <memory>

#include "net/job.h"
#include "transport/mpi_calls.h"

namespace gradwire {

/// Keeps MPI running while it lives. Throws `Error(unavailable)` where there is no MPI, or one that
/// cannot be used from several threads.
class MpiWorld {
 public:
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  std::uint32_t rank() const noexcept { return rank_; }
  std::uint32_t size() const noexcept { return size_; }

  /// All ranks make it, in the same order as their own collective calls on MPI_COMM_WORLD, whose
  /// error handler applies here. Throws `Error(timeout)`.
  std::unique_ptr<MpiComm> duplicate(Deadline deadline);

 private:
  MpiCalls& calls_;
  std::uint32_t rank_ = 0;
  std::uint32_t size_ = 1;
};

}  // namespace gradwire
