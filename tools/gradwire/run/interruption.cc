#include "run/interruption.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "run/child_process.h"

namespace gradwire::cli {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

Interruption::Interruption() {
  sigset_t caught;
  sigemptyset(&caught);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) sigaddset(&caught, signal);
  }
  descriptor_ = FileDescriptor(signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) fail_with_errno("cannot watch for signals");
  pthread_sigmask(SIG_BLOCK, &caught, &before_);
}

Interruption::~Interruption() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int Interruption::next() {
  signalfd_siginfo info{};
  if (read(descriptor(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace gradwire::cli
