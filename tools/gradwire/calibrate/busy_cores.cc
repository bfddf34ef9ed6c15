#include "calibrate/busy_cores.h"

namespace gradwire::cli {

void Computation::run() {
  for (int i = 0; i < 8; ++i) {
    multiply();
    add_up();
  }
}

void Computation::multiply() {
  for (std::size_t i = 0; i < kSide; ++i) {
    for (std::size_t k = 0; k < kSide; ++k) {
      const float factor = a_[i * kSide + k];
      for (std::size_t j = 0; j < kSide; ++j) c_[i * kSide + j] += factor * b_[k * kSide + j];
    }
  }
}

void Computation::add_up() {
  const float factor = 1e-20F * c_[0];
  for (std::size_t i = 0; i < kLong; ++i) y_[i] += factor * x_[i];
}

BusyCores::BusyCores(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      Computation computation;
      while (!done_.load(std::memory_order_relaxed)) computation.run();
    });
  }
}

BusyCores::~BusyCores() { done_.store(true, std::memory_order_relaxed); }

}  // namespace gradwire::cli
