// Ranks as processes of this host.
#pragma once

#include <string>
#include <vector>

#include "run/rank_run.h"

namespace gradwire::cli {

/// Runs the command once per rank and waits, as `RankRun` does. Ranks find their place in RANK,
/// WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
Outcome run_local_ranks(unsigned count, const std::vector<std::string>& arguments,
                        const RunOptions& options);

/// Whether this process is a rank already: mpirun or srun started it for MPI.
bool launched_by_mpi();

}  // namespace gradwire::cli
