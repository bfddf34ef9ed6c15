#include "engine/spending.h"

namespace gradwire::engine {

void add(std::span<const Spent> spent, std::span<TensorStatistics> tensors) noexcept {
  for (const Spent& one : spent) {
    TensorStatistics& total = tensors[one.tensor];
    total.sent_bytes += one.statistics.sent_bytes;
    total.energy += one.statistics.energy;
    total.sum_energy += one.statistics.sum_energy;
    total.residual_energy += one.statistics.residual_energy;
    total.measured_energy += one.statistics.measured_energy;
    total.squared_error += one.statistics.squared_error;
    total.saturated += one.statistics.saturated;
  }
}

void Spending::add(std::size_t piece, std::span<const Spent> spent,
                   std::span<TensorStatistics> tensors) {
  if (piece != next_) {
    waiting_[piece].assign(spent.begin(), spent.end());
    return;
  }
  engine::add(spent, tensors);
  ++next_;
  for (auto next = waiting_.begin(); next != waiting_.end() && next->first == next_; ++next_) {
    engine::add(next->second, tensors);
    next = waiting_.erase(next);
  }
}

}  // namespace gradwire::engine
