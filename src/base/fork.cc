#include "base/fork.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "gradwire/error.h"

namespace gradwire {
namespace {

struct Forks {
  std::mutex mutex;  // held while a thread forks, so that the child finds `descriptors` whole
  std::set<int> descriptors;                 // guarded by mutex: children close them
  std::atomic<std::uint32_t> generation{0};  // forks between the first process and this one
};

/// Never destroyed: descriptors may be closed after all statics.
Forks& forks() {
  static Forks& all = [&]() -> Forks& {
    pthread_atfork([] { forks().mutex.lock(); }, [] { forks().mutex.unlock(); },
                   [] {
                     for (const int descriptor : forks().descriptors) close(descriptor);
                     forks().descriptors.clear();
                     forks().generation.fetch_add(1, std::memory_order_relaxed);
                     forks().mutex.unlock();
                   });
    return *new Forks;
  }();
  return all;
}

}  // namespace

HomeProcess::HomeProcess()
    : generation_(forks().generation.load(std::memory_order_relaxed)), number_(getpid()) {}

bool HomeProcess::here() const noexcept {
  return generation_ == forks().generation.load(std::memory_order_relaxed);
}

void HomeProcess::require(std::string_view what) const {
  if (here()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this {} belongs to process {} and cannot be used in its child: after a "
                          "fork make a new communicator",
                          what, number_));
}

ForkLock::ForkLock() : lock_(forks().mutex) {}

void ForkLock::close_in_children(int descriptor) { forks().descriptors.insert(descriptor); }

void ForkLock::forget(int descriptor) noexcept { forks().descriptors.erase(descriptor); }

}  // namespace gradwire
