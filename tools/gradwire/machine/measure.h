// Timing by repetition: the median tells what to expect, minimum and maximum how far to trust it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

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

/// A sample shorter than this is at the mercy of the clock and of interrupts.
inline constexpr double kShortestSampleSeconds = 2e-3;

/// Seconds per call, over `calls` calls in a row.
template <typename Work>
double seconds_per_call(std::size_t calls, Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < calls; ++i) work();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(calls);
}

/// How many calls make a sample long enough. Runs `work` to find out, which also warms it up.
template <typename Work>
std::size_t calls_per_sample(Work&& work) {
  std::size_t calls = 1;
  while (true) {
    const double seconds = seconds_per_call(calls, work) * static_cast<double>(calls);
    if (seconds >= kShortestSampleSeconds) return calls;
    const double factor = 1.2 * kShortestSampleSeconds / std::max(seconds, 1e-7);
    calls = std::max(calls + 1, static_cast<std::size_t>(static_cast<double>(calls) * factor));
  }
}

}  // namespace gradwire::cli
