#include "run/process_namespace.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "run/child_process.h"

namespace gradwire::cli {
namespace {

/// The keeper must not hold pipes open that others wait to see closed.
void close_all_but(unsigned kept) {
  if (kept > 0) syscall(SYS_close_range, 0U, kept - 1, 0U);
  syscall(SYS_close_range, kept + 1, UINT_MAX, 0U);
}

/// Only system calls: it is a fork of a program that may have had threads.
[[noreturn]] void keep(int lifeline) {
  setsid();
  signal(SIGCHLD, SIG_IGN);  // orphans inside come to the keeper; the kernel reaps them for it
  close_all_but(static_cast<unsigned>(lifeline));
  char byte = 0;
  while (read(lifeline, &byte, 1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

}  // namespace

ProcessNamespace::ProcessNamespace() {
  Pipe pipe;
  if (unshare(CLONE_NEWPID) != 0) fail_with_errno("cannot make a process namespace");
  keeper_ = fork();
  if (keeper_ < 0) fail_with_errno("cannot start a process");
  if (keeper_ == 0) {
    close(pipe.write.get());
    keep(pipe.read.get());
  }
  lifeline_ = std::move(pipe.write);
}

ProcessNamespace::~ProcessNamespace() {
  kill(keeper_, SIGKILL);
  while (waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace gradwire::cli
