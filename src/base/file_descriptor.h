// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <optional>
#include <utility>

#include "base/fork.h"

namespace gradwire {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  /// What `open()` returns, which must not wait. Children of a fork close it at once: for
  /// descriptors by which others know that this process lives, or that hold what should end with
  /// it.
  template <class Open>
  static FileDescriptor not_inherited(Open open) {
    ForkLock lock;
    FileDescriptor made(open());
    if (!made) return made;
    lock.close_in_children(made.number_);
    made.home_.emplace();
    return made;
  }
  FileDescriptor(FileDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)), home_(other.home_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(home_, other.home_);
    return *this;
  }
  ~FileDescriptor() {
    if (get() < 0) return;
    std::optional<ForkLock> lock;
    if (home_) lock.emplace().forget(number_);
    close(number_);
  }

  /// -1 where a fork has closed it: its number may be another's by now.
  int get() const noexcept { return home_ && !home_->here() ? -1 : number_; }
  explicit operator bool() const noexcept { return get() >= 0; }

 private:
  int number_ = -1;
  std::optional<HomeProcess> home_;  // none: children inherit it
};

}  // namespace gradwire
