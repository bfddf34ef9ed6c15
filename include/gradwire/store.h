// Where ranks find one another: a place that all of them can write to and read from.
//
// `Communicator::connect` opens one by itself; a program that has a key-value store of its own (as
// PyTorch does) lends it instead. Whoever can read the store can join the job, unless there is a
// secret.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gradwire {

using Deadline = std::chrono::steady_clock::time_point;

class Store {
 public:
  virtual ~Store() = default;
  /// All throw `Error(timeout)` when the store does not answer in time; `get` waits until somebody
  /// has set the key.
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
  /// Adds to a counter, which is 0 at first, and returns the sum: atomically, also among ranks.
  /// Keys of counters are used for nothing else. Ranks count by it how often they have met in this
  /// store, so that what an earlier life left there misleads nobody.
  virtual std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) = 0;
};

}  // namespace gradwire
