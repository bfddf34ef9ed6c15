// Which option every tensor takes, so that a step takes least.
//
// First ByteComp's algorithm 1: all tensors exact; then, from the largest on and among equal ones
// from the last that is ready, each gets the option with which the step is shortest. Those whose
// exchange ends before links idle are left out: nothing is gained there. Then every tensor is
// looked at again, until no change of one alone makes the step shorter; the same from other starts;
// and whatever can travel exactly without making it longer does.
#pragma once

#include <cstdint>
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
};

/// How one tensor travels.
struct Choice {
  Option option;
  Codec codec;         ///< "none" of exact options
  std::string reason;  ///< in words

  Way way() const;
};

struct Selection {
  std::vector<Choice> choices;  ///< by tensor
  double step_seconds = 0;
  double exposed_seconds = 0;
};

Selection select(const Workload& workload, const Cluster& cluster, const Costs& costs,
                 const SelectionOptions& options);

/// It says of each tensor of the workload how it travels, from step 0 on, and why.
Plan plan_of(const Workload& workload, const Selection& selection);

/// Steps by which a selection is judged.
struct Baselines {
  double plain_seconds = 0;           ///< all tensors by the exact option that is best for all
  double all_compressed_seconds = 0;  ///< all tensors by the lossy option that is best for all
  double bound_seconds = 0;           ///< selected as if codecs took no time
};

Baselines baselines(const Workload& workload, const Cluster& cluster, const Costs& costs,
                    const SelectionOptions& options);

}  // namespace gradwire
