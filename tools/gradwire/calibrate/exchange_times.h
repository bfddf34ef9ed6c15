// How long exchanges between two ranks take, and what they and a backward pass do to one another.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/costs.h"
#include "run/rank_stage.h"

namespace gradwire::cli {

/// An all_gather in which each of two ranks gives the other as many exact numbers.
struct GatherTime {
  std::size_t elements = 0;
  double seconds = 0;
  double cpu_seconds = 0;  ///< of all threads of a rank
};
/// The first has one element, each later one more than that before.
using GatherTimes = std::vector<GatherTime>;

struct ExchangeTimes {
  GatherTimes gathers;      ///< with nothing else on the ranks, in quiet moments
  double delay = 0;         ///< seconds that the smallest takes longer beside busy threads, in mean
  double interference = 1;  ///< computing beside exchanges, as a multiple of it alone
};

struct ExchangeEffort {
  std::string transport = "auto";  ///< as `ConnectOptions` has it
  bool quick = false;
};

/// Starts two ranks on the stage and returns what rank 0 found. Throws as `RankStage::run` does.
ExchangeTimes measure_exchanges(const RankStage& stage, const ExchangeEffort& effort);

/// The work of one of the ranks: `gradwire calibrate --store STORE`.
void run_exchange_rank(const std::string& store, const ExchangeEffort& effort);

/// What is left of the times for the link when exact numbers cost what they do. The smallest
/// message has the latency; bandwidth is the median of those in the upper half of sizes, as a link
/// that is held to a rate lets smaller ones pass at once.
LinkCost link_cost(const GatherTimes& times, const MeasuredCodec& exact);

}  // namespace gradwire::cli
