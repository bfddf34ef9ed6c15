// What reduce_scatter and all_gather work on: parts of tensors, rank after rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradwire/communicator.h"

namespace gradwire::engine {

[[noreturn]] void refuse(const std::string& why);

/// What errors call a tensor.
inline const std::string& label_of(const Tensor& tensor) {
  return tensor.label.empty() ? tensor.name : tensor.label;
}

/// Refuses a tensor without memory.
void check(const Tensor& tensor);

/// Refuses tensors of one call that overlap: what they share would be summed up twice.
void check_apart(std::span<const Tensor> tensors);

/// Refuses tensors of one call that have the same name: what is held back is found by it.
void check_names(std::span<const Tensor> tensors);

/// Cuts a tensor into a part for each rank. Refuses one that they cannot share equally.
std::vector<Tensor> parts_of(const Tensor& tensor, std::uint32_t ranks);

/// The i-th parts of all ranks are one tensor.
class Parts {
 public:
  /// Refuses parts that are not alike for all ranks.
  Parts(std::span<const Tensor> all, std::uint32_t ranks);

  std::span<const Tensor> all() const { return all_; }
  std::size_t tensors() const { return tensors_; }
  const Tensor& of(std::uint32_t rank, std::size_t i) const { return all_[rank * tensors_ + i]; }
  std::span<const Tensor> of(std::uint32_t rank) const {
    return all_.subspan(rank * tensors_, tensors_);
  }

 private:
  void check_alike(std::uint32_t rank, std::size_t i) const;

  std::span<const Tensor> all_;
  std::size_t tensors_;
};

}  // namespace gradwire::engine
