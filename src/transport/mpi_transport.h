// `mpi`: ranks that mpirun or srun started, over whatever network their MPI knows.
//
// A message travels as one MPI message behind a small header: from a copy, so that MPI never holds
// memory that is not ours, and synchronously, so that MPI never keeps more than `kWindow` messages
// that a peer does not want yet. MPI cannot say when something arrives: a waiting rank looks again
// after a pause that grows to a millisecond.
//
// MPI tells nobody that a rank has left. Closing therefore says goodbye to all peers. A rank that
// dies without shows as a missed deadline, unless mpirun ends the job first, as it does by default.
//
// Closing never waits. What MPI is not done with is left behind, and freed by a later
// closing or connecting here once all peers have said goodbye; if they never do, it stays.
#pragma once

#include <memory>
#include <vector>

#include "transport/job.h"
#include "transport/transport.h"

namespace gradwire {

struct MpiOptions {
  std::uint32_t me = 0;     ///< the same as in MPI_COMM_WORLD
  std::uint32_t count = 1;  ///< all of its ranks
  std::vector<std::uint32_t> peers;
  std::size_t max_message_bytes = 0;  ///< longer ones are garbage
  Deadline deadline;
};

/// All ranks of MPI_COMM_WORLD make it together, also those with no peer. Throws as `MpiWorld`, and
/// `Error(invalid_argument)` when MPI counts ranks otherwise.
std::unique_ptr<Transport> connect_mpi(const MpiOptions& options);

}  // namespace gradwire
