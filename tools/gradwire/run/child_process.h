// Starting a program, in namespaces if wanted, and ending it together with what it started.
#pragma once

#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace gradwire::cli {

/// What to start. Descriptors belong to the caller.
struct Launch {
  std::vector<std::string> arguments;    ///< the first names the program, as a shell would find it
  std::vector<std::string> environment;  ///< NAME=value, all of it
  int input = -1;                        ///< becomes the standard input
  int output = -1;                       ///< becomes the standard output
  int errors = -1;                       ///< becomes the standard error
  int network_namespace = -1;            ///< runs inside it, -1: where the caller is
  /// Mounts a /proc of its own, seen by nobody else. For a program that is born in a process
  /// namespace, whose numbers the caller's /proc does not show.
  bool private_proc = false;
};

/// A running program, leader of a session and a process group of its own: a terminal's Ctrl-C does
/// not reach it. Unless it was waited for, the destructor kills the group and waits.
class ChildProcess {
 public:
  /// Returns when the program runs. Throws Error(invalid_argument) when it cannot be executed,
  /// Error(unavailable) when the namespaces refuse; then nothing is left.
  explicit ChildProcess(const Launch& launch);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  /// Readable (poll) once the program has ended.
  int end_descriptor() const noexcept { return end_.get(); }

  /// Sends a signal to the program and to what it started in its group. Not after `wait`.
  void signal_group(int signal) const noexcept;

  /// Waits for the end, kills what the program left running in its group, and returns the status as
  /// a shell shows it: the exit code, or 128 + the signal's number. Once.
  int wait();

 private:
  int pid_ = -1;  // -1: waited for
  FileDescriptor end_;
};

/// A pipe, both ends closed by execution.
struct Pipe {
  Pipe();
  FileDescriptor read;
  FileDescriptor write;
};

/// Error(unavailable) with what could not be done and what the system said.
[[noreturn]] void fail_with_errno(const std::string& what);

}  // namespace gradwire::cli
