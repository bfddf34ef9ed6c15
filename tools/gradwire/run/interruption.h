// Ctrl-C and its relatives as something to poll for.
#pragma once

#include <csignal>

#include "base/file_descriptor.h"

namespace gradwire::cli {

/// Holds back SIGINT, SIGTERM and SIGHUP from the calling thread while it lives, and queues them. A
/// signal that the process ignores (nohup, a job in the background of a script) stays ignored.
/// Other threads must have them blocked too, so make it before starting any. Of two, the inner one
/// gets them; a signal that nobody took takes effect when the outer one ends.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Readable (poll) when a signal waits.
  int descriptor() const noexcept { return descriptor_.get(); }

  /// The oldest signal that waits, 0 when there is none.
  int next();

 private:
  sigset_t before_;
  FileDescriptor descriptor_;
};

/// Thrown when a signal has ended the work before its time. main.cc ends the process by it, after
/// everything on the way there was cleaned up.
struct Interrupted {
  int signal;
};

}  // namespace gradwire::cli
