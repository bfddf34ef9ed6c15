// Forks: what belongs to a process and not to its children.
//
// A child has copies of all memory and descriptors, and none of the threads. Whatever tells others
// that this process lives, above all sockets, is closed in the child before it can do anything
// else; whatever needs its threads can ask where it is.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

namespace gradwire {

/// The process in which something was made.
class HomeProcess {
 public:
  HomeProcess();
  /// False in children of a fork, and in theirs.
  bool here() const noexcept;
  /// Throws `Error(invalid_argument)` there: "this `what` belongs to process 4711 …".
  void require(std::string_view what) const;

 private:
  std::uint32_t generation_;
  int number_;
};

/// Keeps other threads from forking while it lives, which is for a moment only.
class ForkLock {
 public:
  ForkLock();
  /// The child of a fork closes this descriptor, until `forget`.
  void close_in_children(int descriptor);
  void forget(int descriptor) noexcept;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace gradwire
