// Timing by repetition: samples of some length, and what they say together.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace gradwire {

/// The middle one, or the mean of the two in the middle; 0 of none.
double median_of(std::vector<double> values);

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

}  // namespace gradwire
