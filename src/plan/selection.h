// Which option every tensor takes, so that a step takes least.
//
// Small tensors travel with the next large one. What remains has candidates (candidates.h), which a
// search goes through (search.h). Whatever can travel exactly without making the step longer does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/codec.h"
#include "gradwire/plan.h"
#include "plan/costs.h"
#include "plan/forecast.h"
#include "plan/load.h"
#include "plan/workload.h"

namespace gradwire {

/// Measured ones that training can take without feedback.
std::vector<Codec> codecs_without_feedback(const Costs& costs);

struct SelectionOptions {
  std::vector<Codec> codecs{};       ///< that may be taken; without any all is exact
  std::uint32_t most_encodings = 8;  ///< of a number, by codecs, on its way
  /// Squared error of a layer, as a share of its squares: that of its codec on Gaussian numbers
  /// (codec_error.h) for each encoding of a number. None: whatever it is.
  std::optional<double> most_error{};
  /// Tensors that may be compressed in a step. None: all.
  std::optional<std::size_t> most_compressions{};
  /// Options of one device that may be taken, at least one of them exact. None: all there are.
  std::vector<Option> options{};
};

/// How one tensor travels.
struct Choice {
  Option option;       ///< by the second device only if the costs have one
  Codec codec;         ///< "none" of exact options
  std::string reason;  ///< in words

  Way way() const;  ///< with feedback, if the codec needs it
};

struct Selection {
  std::vector<Choice> choices;  ///< by tensor
  double step_seconds = 0;
  double exposed_seconds = 0;
};

/// Throws `Error(invalid_argument)` if a codec that may be taken was not measured.
Selection select(const Workload& workload, const Cluster& cluster, const Costs& costs,
                 const SelectionOptions& options);

/// It says of each tensor of the workload how it travels, from step 0 on, and why.
Plan plan_of(const Workload& workload, const Selection& selection);

/// Steps by which a selection is judged.
struct Baselines {
  double plain_seconds = 0;           ///< all tensors by the exact option that is best for all
  double all_compressed_seconds = 0;  ///< all tensors by the lossy option that is best for all
  double bound_seconds = 0;           ///< selected as if codecs took no time
  /// No selection is shorter by a forecast, as each resource must do its work: that of codecs, too.
  double least_seconds = 0;
};

Baselines baselines(const Workload& workload, const Cluster& cluster, const Costs& costs,
                    const SelectionOptions& options);

}  // namespace gradwire
