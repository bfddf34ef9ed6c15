// What compression held back, kept until the next step: error feedback.
//
// Two residuals per tensor. `sent` is what this rank's own messages lacked; `summed` is what
// messages lacked that this rank made of sums. Both are added to the next numbers that are encoded
// at the same place, so that over many steps nothing is lost: the results plus all ranks' residuals
// are the sum of all inputs, whoever owns which part.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace gradwire {

struct Residual {
  std::vector<float> sent;
  std::vector<float> summed;
};

class Residuals {
 public:
  /// The residual of a tensor, zeros at first. Stays where it is. Throws `Error(invalid_argument)`
  /// when the tensor had another number of elements before. Any thread; what it points to belongs
  /// to one operation at a time.
  Residual& at(const std::string& name, std::size_t count);

  /// All residuals as bytes, and back, replacing what there is. Not while operations are under way.
  /// `load` throws `Error(bad_frame)` for bytes that `save` has not made.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Residual>> by_name_;  // guarded by mutex_
};

}  // namespace gradwire
