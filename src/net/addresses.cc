#include "net/addresses.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/job.h"

namespace gradwire {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);  // for an address that does not answer

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  SocketAddress() = default;
  SocketAddress(const sockaddr* from, socklen_t size) : length(size) {
    std::memcpy(&bytes, from, size);
  }
  /// Of IPv4 or IPv6.
  explicit SocketAddress(const sockaddr* from)
      : SocketAddress(from,
                      from->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)) {}

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  int family() const { return bytes.ss_family; }

  std::uint16_t port() const {
    return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port
                                     : reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port);
  }
  void set_port(std::uint16_t port) {
    if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&bytes)->sin_port = htons(port);
    if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port = htons(port);
  }
  std::string host() const {
    char text[NI_MAXHOST];
    const bool known =
        getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
    return known ? text : "";
  }
  std::string text(std::uint16_t port) const { return fmt::format("{} {}", host(), port); }
};

using SocketAddresses = std::vector<SocketAddress>;

std::vector<std::string> hosts_of(const SocketAddresses& addresses) {
  std::vector<std::string> hosts;
  for (const SocketAddress& each : addresses) hosts.push_back(each.host());
  return hosts;
}

// ---------------------------------------------------------------------------------------------
// Names

/// Each address once; none when there is no such host.
SocketAddresses ask_resolver(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return {};
  SocketAddresses found;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    const SocketAddress address(each->ai_addr, each->ai_addrlen);
    const auto same = [&](const SocketAddress& other) { return other.host() == address.host(); };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back(address);
  }
  freeaddrinfo(first);
  return found;
}

SocketAddresses resolve(const std::string& host, Deadline deadline) {
  SocketAddresses numeric = ask_resolver(host, AI_NUMERICHOST);
  if (!numeric.empty()) return numeric;
  // The system's resolver knows no deadlines: a thread asks, which is left behind if it must be.
  std::packaged_task<SocketAddresses()> task([host] { return ask_resolver(host, 0); });
  std::future<SocketAddresses> answer = task.get_future();
  std::thread(std::move(task)).detach();
  std::future_status status = std::future_status::timeout;
  while (status == std::future_status::timeout && Clock::now() < deadline) {
    status = answer.wait_for(std::chrono::milliseconds(milliseconds_until(deadline)));
  }
  if (status == std::future_status::timeout) {
    throw Error(ErrorCode::timeout,
                fmt::format("the system did not resolve the name of the host '{}' before the "
                            "deadline: is its name server reachable? Else give an address",
                            host));
  }
  return answer.get();
}

// ---------------------------------------------------------------------------------------------
// Interfaces

struct Interface {
  std::string name;
  SocketAddress address;
  bool loopback;
};

std::vector<Interface> interfaces_up() {
  std::vector<Interface> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found.push_back(
        {entry->ifa_name, SocketAddress(entry->ifa_addr), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(first);
  return found;
}

/// Of the interface with this name or address.
SocketAddresses addresses_of(const std::string& interface) {
  SocketAddresses found;
  for (const Interface& each : interfaces_up()) {
    if (interface == each.name || interface == each.address.host()) found.push_back(each.address);
  }
  if (found.empty()) {
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no network interface '{}'; there are: {}", interface,
                            list_interfaces()));
  }
  return found;
}

/// Where other ranks may reach sockets that listen on all addresses of these families. Loopback is
/// last: ranks of the same host may have nothing else.
std::vector<std::string> reachable(const std::vector<int>& families, std::uint16_t port) {
  std::vector<std::string> found;
  for (const Interface& each : interfaces_up()) {
    const bool listens =
        std::find(families.begin(), families.end(), each.address.family()) != families.end();
    if (listens && !each.loopback) found.push_back(each.address.text(port));
  }
  found.push_back(fmt::format("{} {}", families.back() == AF_INET ? "127.0.0.1" : "::1", port));
  return found;
}

// ---------------------------------------------------------------------------------------------
// Listening

/// A socket that listens there; none, and errno, if that cannot be.
FileDescriptor listen_at(const SocketAddress& where) {
  FileDescriptor listener = FileDescriptor::not_inherited(
      [&] { return socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (!listener) return {};
  const int yes = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (where.family() == AF_INET6) {  // IPv4 has a socket of its own
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
  }
  const bool listens =
      bind(listener.get(), where.get(), where.length) == 0 && listen(listener.get(), kBacklog) == 0;
  return listens ? std::move(listener) : FileDescriptor();
}

std::uint16_t port_of(int socket) {
  SocketAddress address;
  address.length = sizeof(address.bytes);
  getsockname(socket, address.get(), &address.length);
  return address.port();
}

struct Listening {
  std::vector<FileDescriptor> sockets;
  SocketAddresses addresses;
  std::uint16_t port = 0;
};

/// At those of the addresses that this host has, all at one port.
Listening listen_at_all(const SocketAddresses& wanted, std::uint16_t port) {
  int tries = port == 0 ? 20 : 1;  // a port that is free at one address may be taken at the next
  while (true) {
    Listening all{.sockets = {}, .addresses = {}, .port = port};
    int error = 0;
    for (SocketAddress where : wanted) {
      where.set_port(all.port);
      FileDescriptor socket = listen_at(where);
      if (socket) {
        all.port = port_of(socket.get());
        all.sockets.push_back(std::move(socket));
        all.addresses.push_back(where);
      } else if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) {  // else: not an address here
        error = errno;
      }
    }
    if (error == 0) return all;
    if (error != EADDRINUSE || --tries == 0) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("cannot listen on TCP port {} of {}: {}", port,
                              fmt::join(hosts_of(wanted), ", "), std::strerror(error)));
    }
  }
}

Listener listener_of(Listening all) {
  Listener listener{std::move(all.sockets), {}};
  for (const SocketAddress& each : all.addresses) listener.addresses.push_back(each.text(all.port));
  return listener;
}

// ---------------------------------------------------------------------------------------------
// Calling

/// A connection, or none.
FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  FileDescriptor caller = FileDescriptor::not_inherited(
      [&] { return socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!caller) return {};
  const int result = connect(caller.get(), address.get(), address.length);
  if (result != 0 && errno != EINPROGRESS) return {};
  pollfd polled{caller.get(), POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof(error);
  int ready = 0;
  while (ready == 0 && Clock::now() < deadline) {
    ready = poll(&polled, 1, milliseconds_until(deadline));
  }
  if (ready <= 0 || getsockopt(caller.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
      error != 0) {
    return {};
  }
  fcntl(caller.get(), F_SETFL, fcntl(caller.get(), F_GETFL) & ~O_NONBLOCK);
  return caller;
}

FileDescriptor connect_to_any(SocketAddresses addresses, const std::string& port,
                              Deadline deadline) {
  for (SocketAddress& each : addresses) {
    each.set_port(static_cast<std::uint16_t>(std::strtoul(port.c_str(), nullptr, 10)));
    FileDescriptor connected = connect_to(each, std::min(deadline, Clock::now() + kPatience));
    if (connected) return connected;
  }
  return {};
}

}  // namespace

std::vector<int> Listener::descriptors() const {
  std::vector<int> numbers;
  for (const FileDescriptor& socket : sockets) numbers.push_back(socket.get());
  return numbers;
}

Listener listen_tcp(const std::string& interface, std::uint16_t port) {
  const bool everywhere = interface.empty();
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  const SocketAddresses wanted =
      everywhere ? SocketAddresses{SocketAddress(reinterpret_cast<const sockaddr*>(&any6)),
                                   SocketAddress(reinterpret_cast<const sockaddr*>(&any4))}
                 : addresses_of(interface);
  Listening all = listen_at_all(wanted, port);
  if (all.sockets.empty()) {
    throw Error(ErrorCode::unavailable,
                fmt::format("cannot listen on {}: the kernel has neither IPv4 nor IPv6 there",
                            fmt::join(hosts_of(wanted), ", ")));
  }
  if (!everywhere) return listener_of(std::move(all));
  std::vector<int> families;
  for (const SocketAddress& each : all.addresses) families.push_back(each.family());
  return {std::move(all.sockets), reachable(families, all.port)};
}

Listener listen_tcp_host(const std::string& host, std::uint16_t port, Deadline deadline) {
  SocketAddresses named = resolve(host, deadline);
  while (named.empty()) {  // name servers may learn of a new host late
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::timeout,
                  fmt::format("there is no host '{}': this one has {}", host, list_interfaces()));
    }
    poll(nullptr, 0, milliseconds_until(deadline));
    named = resolve(host, deadline);
  }
  Listening all = listen_at_all(named, port);
  if (all.sockets.empty()) {
    throw Error(
        ErrorCode::unavailable,
        fmt::format("'{}' ({}) is no address of this host, which has {}: give one of these that "
                    "all others reach; if others reach this host by an address that it does not "
                    "have (NAT), give 0.0.0.0 here and that address there",
                    host, fmt::join(hosts_of(named), ", "), list_interfaces()));
  }
  return listener_of(std::move(all));
}

std::string list_interfaces() {
  std::vector<std::string> names;
  for (const Interface& each : interfaces_up()) {
    names.push_back(fmt::format("{} ({})", each.name, each.address.host()));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

FileDescriptor connect_tcp_address(const std::string& address, Deadline deadline) {
  const std::size_t space = address.find(' ');
  if (space == std::string::npos) return {};
  return connect_to_any(ask_resolver(address.substr(0, space), AI_NUMERICHOST),
                        address.substr(space + 1), deadline);
}

FileDescriptor connect_tcp_host(const std::string& host, const std::string& port,
                                Deadline deadline) {
  return connect_to_any(resolve(host, deadline), port, deadline);
}

}  // namespace gradwire
