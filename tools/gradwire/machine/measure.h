// Timing by repetition: the median tells what to expect, minimum and maximum how far to trust it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/sampling.h"

namespace gradwire::cli {

/// Seconds that the same work took, once per sample.
class Timings {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }

  // Of at least one sample.
  double median() const;
  double lower_quartile() const;  ///< what to expect when others leave the machine alone
  double fastest() const;
  double slowest() const;

 private:
  std::vector<double> seconds_;
};

/// 10^9 bytes per second.
inline double gigabytes_per_second(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / 1e9 / seconds;
}

/// How much of the time since construction the calling thread had a CPU to itself. Interleaving
/// samples evens out slow drifts; it does not help when other processes take the CPU from some
/// samples and not from others, and then neither speeds nor their ratios mean much.
class CpuShare {
 public:
  CpuShare();
  /// 1 on an idle machine.
  double share() const;

 private:
  double wall_seconds_;
  double cpu_seconds_;
};

/// Below this share a benchmark says that its figures were disturbed.
inline constexpr double kUndisturbedShare = 0.97;

/// What to tell people about the share; empty when it is high enough.
std::string disturbance_note(double share);

}  // namespace gradwire::cli
