#include "machine/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace gradwire::cli {
namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

CpuShare::CpuShare()
    : wall_seconds_(seconds_of(CLOCK_MONOTONIC)),
      cpu_seconds_(seconds_of(CLOCK_THREAD_CPUTIME_ID)) {}

double CpuShare::share() const {
  const double wall = seconds_of(CLOCK_MONOTONIC) - wall_seconds_;
  const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_seconds_;
  return wall > 0 ? std::min(cpu / wall, 1.0) : 1.0;
}

std::string disturbance_note(double share) {
  if (share >= kUndisturbedShare) return "";
  return fmt::format(
      "Disturbed: other processes took the CPU for {:.0f} % of the time. Do not trust these speeds "
      "or "
      "their ratios; repeat on an idle machine.",
      100 * (1 - share));
}

double Timings::median() const { return median_of(seconds_); }

double Timings::lower_quartile() const {
  std::vector<double> sorted = seconds_;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 4];
}

double Timings::fastest() const { return *std::min_element(seconds_.begin(), seconds_.end()); }

double Timings::slowest() const { return *std::max_element(seconds_.begin(), seconds_.end()); }

}  // namespace gradwire::cli
