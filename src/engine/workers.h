// Threads that do what they are handed, in the order in which it came.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gradwire::engine {

class Workers {
 public:
  explicit Workers(std::size_t count);
  /// Finishes what was handed over.
  ~Workers();

  bool empty() const { return threads_.empty(); }
  void hand_over(std::function<void()> job);
  /// Returns when all that was handed over is done.
  void drain();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  std::size_t undone_ = 0;                  // guarded by mutex_: jobs that wait or are being done
  bool stop_ = false;                       // guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace gradwire::engine
