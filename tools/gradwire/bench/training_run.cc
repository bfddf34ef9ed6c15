#include "bench/training_run.h"

#include <fmt/format.h>

#include "plan/link_rate.h"
#include "run/python_interpreter.h"

namespace gradwire::cli {

Json TrainingRuns::run(const RankStage& stage, const TrainingJob& job,
                       const std::function<void(const Json&)>& on_step) {
  std::vector<std::string> arguments{find_python(job.python),
                                     "-m",
                                     "gradwire.training.worker",
                                     "--model",
                                     job.model,
                                     "--method",
                                     job.method,
                                     "--optimizer",
                                     job.optimizer,
                                     "--steps",
                                     std::to_string(job.steps),
                                     "--settle",
                                     std::to_string(job.settle),
                                     "--seed",
                                     std::to_string(job.seed),
                                     "--batch",
                                     std::to_string(job.batch),
                                     "--interface",
                                     stage.has_hosts() ? TestHosts::kInterface : "lo",
                                     "--store",
                                     fmt::format("{}/store{}", scratch_.path(), stores_++),
                                     "--data",
                                     scratch_.path()};
  if (job.evaluate) arguments.emplace_back("--evaluate");
  if (stage.has_hosts() && parse_link_rate(job.link).limited()) {
    arguments.insert(arguments.end(), {"--link", job.link});
  }
  Json last;
  stage.run(arguments, [&](std::string_view line) {
    last = Json::parse(line);
    if (last.contains("step")) on_step(last);
  });
  return last;
}

}  // namespace gradwire::cli
