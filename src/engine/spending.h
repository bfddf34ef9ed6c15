// What the pieces of an operation cost, added up in the order of the pieces, whichever ends first:
// sums of doubles depend on their order, and statistics must not depend on timing.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "gradwire/communicator.h"

namespace gradwire::engine {

/// To be added to the statistics of a tensor.
struct Spent {
  std::size_t tensor;
  TensorStatistics statistics;
};

/// Adds them in their order.
void add(std::span<const Spent> spent, std::span<TensorStatistics> tensors) noexcept;

class Spending {
 public:
  /// A piece has ended, and spent that in the order of its steps. It is added to `tensors`, with
  /// what waited for it, or waits for the pieces before.
  void add(std::size_t piece, std::span<const Spent> spent, std::span<TensorStatistics> tensors);

 private:
  std::size_t next_ = 0;  // piece
  std::map<std::size_t, std::vector<Spent>> waiting_;
};

}  // namespace gradwire::engine
