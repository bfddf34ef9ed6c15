// What `gradwire plan` and `gradwire simulate` are told: a model, a cluster, costs, and what may be
// chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/selection.h"

namespace CLI {
class App;
}

namespace gradwire::cli {

inline constexpr std::uint32_t kMostHosts = 4096;
inline constexpr std::uint32_t kMostRanksPerHost = 64;

struct PlanningInput {
  std::string model, workload, profile;  ///< one of them
  double step_milliseconds = 0;          ///< 0: a V100's, about
  Cluster cluster{.hosts = 2, .ranks_per_host = 1};
  std::string link;  ///< empty: as the costs have it
  std::string costs = "cpu";
  std::vector<std::string> codecs;  ///< without any: all that need no feedback
  std::uint32_t most_encodings = 4;
  std::optional<double> most_error;
  std::optional<std::size_t> most_compressions;
  bool one_device = false;           ///< as gradwire executes: without a second one of the costs
  std::size_t bucket_mebibytes = 0;  ///< 0: gradients are exchanged as they are ready
};

/// Adds the options for all of it but the cluster's.
void add_planning_options(CLI::App& command, PlanningInput& input);

/// Throw `Error` for what is wrong, in a sentence that names the file if there is one.
/// The workload's gradients are handed over in buckets, where one was asked for.
Workload workload_of(const PlanningInput& input);
Costs costs_of(const PlanningInput& input);
SelectionOptions selection_options(const PlanningInput& input, const Costs& costs);

/// What is planned, with what it is compared with.
struct Planned {
  Workload workload;
  Costs costs;
  Selection selection;
  Baselines baselines;
  bool second_device_left_out = false;  ///< that the costs have
};

Planned make_plan(const PlanningInput& input, Workload workload);

/// "1 host", "4 hosts".
std::string counted(std::uint32_t count, const char* what);
/// "on 4 hosts with 2 ranks each", "on 1 host with 8 ranks".
std::string text_of(const Cluster& cluster);

/// "12.34"; "-" of what no choice has: of one rank, all compressed.
std::string milliseconds(double seconds);
/// Of two times, "1.25"; "-" where that is no number.
std::string ratio(double seconds, double by_seconds);

/// Throws `Error(io)` if it cannot be read.
std::string read_text(const std::string& path);
/// Throws `Error(io)` if it cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace gradwire::cli
