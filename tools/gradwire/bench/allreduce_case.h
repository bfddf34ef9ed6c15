// What `bench allreduce` measures, and how its ranks report it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "terminal/json_output.h"

namespace gradwire::cli {

/// What every rank is told; travels as command-line options.
struct AllreducePlan {
  std::vector<std::string> codecs;
  std::vector<std::size_t> sizes;  ///< bytes of fp32
  std::string algorithm = "auto";
  std::string transport = "auto";
  bool tls = false;  ///< encrypt what goes over tcp
  std::string data = "gaussian";
  unsigned repeat = 11;
  unsigned lanes = 8;
  std::size_t piece = 0;
  bool line_rate = false;  ///< measure what the links carry, too
  bool check = false;      ///< every rank's result of every round
};

/// One rank's work: connects, measures, and returns what it found when it is rank 0. `store` is
/// where ranks find one another; unless it is mpi, rank and size come from RANK and WORLD_SIZE.
std::optional<Json> run_allreduce_rank(const AllreducePlan& plan, const std::string& store);

}  // namespace gradwire::cli
