// What compression held back, kept until the next step: error feedback.
//
// A tensor's residual is added to its numbers before anything is encoded, and becomes what the
// messages lacked that this rank made of them or of sums of them. So nothing is lost over many
// steps: the results and all ranks' residuals are the sum of all inputs, whoever adds up which
// part.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "gradwire/tensor.h"

namespace gradwire {

struct Residual {
  std::vector<float> numbers;
  bool lent = false;  // guarded by the mutex of `Residuals`

  /// Adds an operation's input.
  void accumulate(ConstTensorView input) noexcept;
};

class Residuals {
  struct GiveBack {
    Residuals* owner = nullptr;
    void operator()(Residual* residual) const noexcept;
  };

 public:
  /// A residual in the hands of one operation.
  using Loan = std::unique_ptr<Residual, GiveBack>;

  /// The residual of a tensor, zeros at first. Throws `Error(invalid_argument)` when the tensor had
  /// another number of elements before, or when it is lent already. Any thread.
  Loan borrow(const std::string& name, std::size_t count);

  /// All residuals as bytes, and back, replacing what there is. Not while operations are under way.
  /// `load` throws `Error(bad_frame)` for bytes that `save` has not made.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Residual>> by_name_;  // guarded by mutex_
};

}  // namespace gradwire
