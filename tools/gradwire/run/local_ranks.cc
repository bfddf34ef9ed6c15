#include "run/local_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace gradwire::cli {

Outcome run_local_ranks(unsigned count, const std::vector<std::string>& arguments,
                        const RunOptions& options) {
  std::vector<RankCommand> commands;
  for (unsigned rank = 0; rank < count; ++rank) {
    RankCommand command{arguments, {}, -1};
    for (char** entry = environ; *entry != nullptr; ++entry)
      command.environment.emplace_back(*entry);
    for (const char* name : {"RANK", "LOCAL_RANK"}) {
      command.environment.push_back(fmt::format("{}={}", name, rank));
    }
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
      command.environment.push_back(fmt::format("{}={}", name, count));
    }
    commands.push_back(std::move(command));
  }
  return RankRun(commands, options).wait();
}

bool launched_by_mpi() {
  // Open MPI's own, then what process managers set: PMIx (srun --mpi=pmix), PMI (MPICH, srun).
  const char* const marks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
  return std::any_of(std::begin(marks), std::end(marks),
                     [](const char* mark) { return std::getenv(mark) != nullptr; });
}

}  // namespace gradwire::cli
