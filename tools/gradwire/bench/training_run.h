// One training by `gradwire.training.worker`, on ranks of a stage.
#pragma once

#include <functional>
#include <string>

#include "run/rank_stage.h"
#include "run/scratch_folder.h"
#include "terminal/json_output.h"

namespace gradwire::cli {

struct TrainingJob {
  std::string model{};
  std::string method{};
  std::string optimizer = "adamw";
  unsigned steps = 50;
  unsigned settle = 0;  ///< steps before those, of methods of gradwire
  unsigned seed = 0;
  unsigned batch = 0;  ///< 0: as the model has it
  bool evaluate = false;
  std::string link{};    ///< of the stage's hosts
  std::string python{};  ///< empty: found
};

/// Trains one job after the other. What they prepare is kept between them.
class TrainingRuns {
 public:
  /// The last object that rank 0 prints: the worker's help has it. `on_step` gets those before.
  /// Throws as `RankStage::run` does.
  Json run(const RankStage& stage, const TrainingJob& job,
           const std::function<void(const Json&)>& on_step);

 private:
  const ScratchFolder scratch_;
  unsigned stores_ = 0;
};

}  // namespace gradwire::cli
