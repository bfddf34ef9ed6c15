#include "hosts/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <future>

#include "gradwire/error.h"
#include "run/child_process.h"

namespace gradwire::cli {
namespace {

[[noreturn]] void fail_to_make() {
  if (errno != EPERM) fail_with_errno("cannot make a network namespace");
  throw Error(ErrorCode::unavailable,
              "test hosts need the right to make networks; run as root (sudo), or in a container "
              "with CAP_NET_ADMIN and CAP_SYS_ADMIN");
}

/// For a thread that ends afterwards: it stays in the namespace.
FileDescriptor enter_new_namespace() {
  if (unshare(CLONE_NEWNET) != 0) fail_to_make();
  FileDescriptor descriptor(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!descriptor) fail_with_errno("cannot open a network namespace");
  return descriptor;
}

/// Root's PATH does not have sbin everywhere.
std::string find_program(std::string_view name) {
  const char* const path = std::getenv("PATH");
  const std::string folders = std::string(path == nullptr ? "" : path) + ":/usr/sbin:/sbin";
  for (std::size_t begin = 0; begin < folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string file = folders.substr(begin, end - begin) + "/" + std::string(name);
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  throw Error(ErrorCode::unavailable, "the program '" + std::string(name) +
                                          "' is missing; install it: apt-get install iproute2");
}

/// A file without a name that holds `text`, at its beginning.
FileDescriptor file_with(std::string_view text) {
  FileDescriptor file(memfd_create("commands", MFD_CLOEXEC));
  if (!file) fail_with_errno("cannot make a file in memory");
  if (pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    fail_with_errno("cannot write a file in memory");
  }
  return file;
}

std::string read_all(int descriptor) {
  std::string text;
  char piece[4096];
  for (ssize_t size = 0; (size = read(descriptor, piece, sizeof piece)) != 0;) {
    if (size > 0) text.append(piece, static_cast<std::size_t>(size));
    if (size < 0 && errno != EINTR) break;
  }
  return text;
}

std::string in_one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos;) text.replace(at, 1, "; ");
  return text;
}

}  // namespace

NetworkNamespace::NetworkNamespace()
    : descriptor_(std::async(std::launch::async, enter_new_namespace).get()) {}

std::string NetworkNamespace::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor());
}

void NetworkNamespace::configure(std::string_view program, std::string_view commands) const {
  const FileDescriptor input = file_with(commands);
  Pipe said;
  Launch launch;
  launch.arguments = {find_program(program), "-batch", "-"};
  launch.environment = {"LC_ALL=C"};
  launch.input = input.get();
  launch.output = launch.errors = said.write.get();
  launch.network_namespace = descriptor();
  ChildProcess child(launch);
  said.write = FileDescriptor();
  const std::string words = in_one_line(read_all(said.read.get()));
  if (child.wait() == 0) return;
  throw Error(ErrorCode::unavailable,
              "cannot set up the test network: " + std::string(program) + " says: " + words);
}

}  // namespace gradwire::cli
