// Where ranks find one another: a place that all of them can write to and read from.
//
// `Communicator::connect` opens one by itself; a program that has a key-value store of its own (as
// PyTorch does) lends it instead. Whoever can read the store can join the job, unless there is a
// secret.
#pragma once

#include <chrono>
#include <string>

namespace gradwire {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

class Store {
 public:
  virtual ~Store() = default;
  /// Both throw `Error(timeout)` when the store does not answer in time; `get` waits until somebody
  /// has set the key.
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace gradwire
