#include "engine/workers.h"

#include <pthread.h>

namespace gradwire::engine {

Workers::Workers(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Workers::hand_over(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  ++undone_;
  changed_.notify_one();
}

void Workers::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return undone_ == 0; });
}

void Workers::work() {
  pthread_setname_np(pthread_self(), "gradwire-codec");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    if (--undone_ == 0) changed_.notify_all();
  }
}

}  // namespace gradwire::engine
