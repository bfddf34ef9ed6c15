#include "measure.h"

namespace gradwire::cli {

double Timings::median() const {
  std::vector<double> sorted = seconds_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Timings::fastest() const { return *std::min_element(seconds_.begin(), seconds_.end()); }

double Timings::slowest() const { return *std::max_element(seconds_.begin(), seconds_.end()); }

}  // namespace gradwire::cli
