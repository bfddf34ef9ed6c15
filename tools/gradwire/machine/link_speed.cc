#include "machine/link_speed.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/addresses.h"
#include "net/job.h"

namespace gradwire::cli {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

FileDescriptor call(const std::string& addresses, Deadline deadline) {
  std::istringstream lines(addresses);
  for (std::string line; std::getline(lines, line);) {
    if (FileDescriptor socket = connect_tcp_address(line, deadline)) return socket;
  }
  throw Error(ErrorCode::unavailable, "the next rank cannot be reached to measure the link");
}

FileDescriptor take_call(const Listener& listener, Deadline deadline) {
  std::vector<pollfd> polled;
  for (const int socket : listener.descriptors()) polled.push_back({socket, POLLIN, 0});
  while (Clock::now() < deadline) {
    if (poll(polled.data(), polled.size(), milliseconds_until(deadline)) <= 0) continue;
    for (const pollfd& each : polled) {
      if (each.revents == 0) continue;
      return FileDescriptor(accept4(each.fd, nullptr, nullptr, SOCK_CLOEXEC));
    }
  }
  throw Error(ErrorCode::timeout, "the rank before this one did not call to measure the link");
}

void stream(int socket, std::chrono::milliseconds duration) {
  const std::vector<std::byte> block(kBlock);
  const Deadline end = Clock::now() + duration;
  while (Clock::now() < end) {
    if (send(socket, block.data(), block.size(), MSG_NOSIGNAL) <= 0) break;
  }
}

/// From the first byte to the last.
double drain(int socket) {
  std::vector<std::byte> block(kBlock);
  std::size_t bytes = 0;
  Clock::time_point first;
  Clock::time_point last;
  while (true) {
    const ssize_t n = recv(socket, block.data(), block.size(), 0);
    if (n <= 0) break;
    last = Clock::now();
    if (first == Clock::time_point()) {
      first = last;
    } else {
      bytes += static_cast<std::size_t>(n);
    }
  }
  return static_cast<double>(bytes) / std::chrono::duration<double>(last - first).count();
}

}  // namespace

double measure_link_speed(Store& store, std::uint32_t rank, std::uint32_t size,
                          std::chrono::milliseconds duration) {
  const Deadline deadline = Clock::now() + std::chrono::seconds(60);
  const Listener listener = listen_tcp("", 0);
  store.set(fmt::format("link-{}", rank), join_lines(listener.addresses), deadline);
  const FileDescriptor out =
      call(store.get(fmt::format("link-{}", (rank + 1) % size), deadline), deadline);
  const FileDescriptor in = take_call(listener, deadline);
  std::thread sender([&] {
    stream(out.get(), duration);
    shutdown(out.get(), SHUT_WR);
  });
  const double speed = drain(in.get());
  sender.join();
  return speed;
}

}  // namespace gradwire::cli
