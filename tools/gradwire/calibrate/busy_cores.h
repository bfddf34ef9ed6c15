// Work like that of a backward pass, for measurements beside it.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace gradwire::cli {

/// Products of matrices that caches hold, and sums over memory that they do not. One thread.
class Computation {
 public:
  /// Takes about a millisecond.
  void run();

 private:
  static constexpr std::size_t kSide = 96;
  static constexpr std::size_t kLong = std::size_t{1} << 19U;

  void multiply();
  void add_up();

  std::vector<float> a_ = std::vector<float>(kSide * kSide, 1e-3F);
  std::vector<float> b_ = a_;
  std::vector<float> c_ = a_;
  std::vector<float> x_ = std::vector<float>(kLong, 1e-3F);
  std::vector<float> y_ = x_;
};

/// Threads that compute as long as the object lives.
class BusyCores {
 public:
  explicit BusyCores(unsigned threads);
  ~BusyCores();
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace gradwire::cli
