#include "run/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

/// What a child was about to do when it failed.
enum class Step : int { enter_network, mount_proc, redirect, execute };

struct Failure {
  Step step;
  int error;
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  // execve takes char* for historical reasons and changes nothing.
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// From here to `become`: between fork and execution, where only system calls are allowed.

/// What is mounted later stays in the child, and what the machine mounts still appears in it.
bool mount_own_proc() {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
         mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0;
}

bool redirect(const Launch& launch) {
  return dup2(launch.input, STDIN_FILENO) >= 0 && dup2(launch.output, STDOUT_FILENO) >= 0 &&
         dup2(launch.errors, STDERR_FILENO) >= 0;
}

void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Returns only when it failed, with the step.
Step become(const Launch& launch, char* const* arguments, char* const* environment) {
  setsid();
  unblock_signals();
  const int network = launch.network_namespace;
  if (network >= 0 && setns(network, CLONE_NEWNET) != 0) return Step::enter_network;
  if (launch.private_proc && !mount_own_proc()) return Step::mount_proc;
  if (!redirect(launch)) return Step::redirect;
  execvpe(arguments[0], arguments, environment);
  return Step::execute;
}

pid_t start(const Launch& launch, int report) {
  const std::vector<char*> arguments = pointers_to(launch.arguments);
  const std::vector<char*> environment = pointers_to(launch.environment);
  const pid_t pid = fork();
  if (pid < 0) fail_with_errno("cannot start " + launch.arguments.front());
  if (pid > 0) return pid;
  const Step step = become(launch, arguments.data(), environment.data());
  const Failure failure{step, errno};
  [[maybe_unused]] const ssize_t written = write(report, &failure, sizeof failure);
  _exit(127);
}

[[noreturn]] void report(const Launch& launch, Failure failure) {
  errno = failure.error;
  switch (failure.step) {
    case Step::enter_network:
      fail_with_errno("cannot enter a network namespace");
    case Step::mount_proc:
      fail_with_errno("cannot mount a /proc for the ranks");
    case Step::redirect:
      fail_with_errno("cannot connect the standard streams");
    case Step::execute:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              "cannot run '" + launch.arguments.front() + "': " + std::strerror(failure.error));
}

/// The pipe's writing end closes itself when the child executes its program; a child that cannot
/// writes why.
void check_started(const Launch& launch, int read_end) {
  Failure failure{};
  ssize_t size = 0;
  do {
    size = read(read_end, &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  if (size == sizeof failure) report(launch, failure);
}

}  // namespace

void fail_with_errno(const std::string& what) {
  throw Error(ErrorCode::unavailable, what + ": " + std::strerror(errno));
}

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_with_errno("cannot make a pipe");
  read = FileDescriptor(ends[0]);
  write = FileDescriptor(ends[1]);
}

ChildProcess::ChildProcess(const Launch& launch) {
  Pipe started;
  pid_ = start(launch, started.write.get());
  started.write = FileDescriptor();
  try {
    end_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (!end_) fail_with_errno("cannot watch a process, which Linux 5.3 and later can");
    check_started(launch, started.read.get());
  } catch (...) {
    kill(pid_, SIGKILL);
    wait();
    throw;
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  signal_group(SIGKILL);
  wait();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), end_(std::move(other.end_)) {}

void ChildProcess::signal_group(int signal) const noexcept { kill(-pid_, signal); }

int ChildProcess::wait() {
  siginfo_t end{};
  const auto id = static_cast<id_t>(pid_);
  // Not reaped at first: as long as it is not, no other group can get its number.
  while (waitid(P_PID, id, &end, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  signal_group(SIGKILL);
  waitid(P_PID, id, &end, WEXITED);
  pid_ = -1;
  return end.si_code == CLD_EXITED ? end.si_status : 128 + end.si_status;
}

}  // namespace gradwire::cli
