#include "local_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

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

}  // namespace gradwire::cli
