#include "net/addresses.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string_view>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/tcp_test_helpers.h"

namespace {

/// A name server that does not answer until the test is over.
struct {
  std::mutex mutex;
  std::condition_variable changed;
  bool answers = false;
} silent_server;

}  // namespace

/// Stands before the system's own: the library that is tested here is part of this program.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  if (std::string_view(node) == "slow.invalid" && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    std::unique_lock lock(silent_server.mutex);
    silent_server.changed.wait(lock, [] { return silent_server.answers; });
    return EAI_AGAIN;
  }
  using Resolver = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto kReal = reinterpret_cast<Resolver>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return kReal(node, service, hints, result);
}

namespace gradwire {
namespace {

std::string host_of(const sockaddr* address) {
  char host[NI_MAXHOST];
  const socklen_t length =
      address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

/// Where sockets really listen.
std::set<std::string> bound(const Listener& listener) {
  std::set<std::string> hosts;
  for (const int socket : listener.descriptors()) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
    hosts.insert(host_of(reinterpret_cast<const sockaddr*>(&address)));
  }
  return hosts;
}

std::set<std::string> addresses_of_loopback() {
  std::set<std::string> hosts;
  ifaddrs* first = nullptr;
  getifaddrs(&first);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    const int family = each->ifa_addr != nullptr ? each->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    if (std::string_view(each->ifa_name) == "lo") hosts.insert(host_of(each->ifa_addr));
  }
  freeifaddrs(first);
  return hosts;
}

std::string port_of(const Listener& listener) {
  const std::string& address = listener.addresses.at(0);
  return address.substr(address.find(' ') + 1);
}

TEST(ListenTcp, an_address_is_listened_on_alone) {
  const Listener listener = listen_tcp("127.0.0.1", 0);
  EXPECT_EQ(bound(listener), std::set<std::string>{"127.0.0.1"});
  EXPECT_TRUE(answers("127.0.0.1", port_of(listener)));
  EXPECT_FALSE(answers("127.0.0.2", port_of(listener)));
}

TEST(ListenTcp, an_interface_is_listened_on_at_all_of_its_addresses_and_no_others) {
  const Listener listener = listen_tcp("lo", 0);
  EXPECT_EQ(bound(listener), addresses_of_loopback());
  EXPECT_EQ(listener.addresses.size(), listener.sockets.size());
  for (const std::string& address : listener.addresses) {
    EXPECT_TRUE(connect_tcp_address(address, in(2000))) << address;
  }
  EXPECT_FALSE(answers("127.0.0.2", port_of(listener)));
}

TEST(ListenTcp, no_interface_is_all_addresses) {
  const Listener listener = listen_tcp("", 0);
  EXPECT_TRUE(bound(listener).contains("0.0.0.0"));
  EXPECT_TRUE(answers("127.0.0.1", port_of(listener)));
  EXPECT_TRUE(answers("127.0.0.2", port_of(listener)));
}

TEST(ListenTcp, a_port_that_is_taken_is_an_error_that_names_it) {
  const Listener first = listen_tcp("127.0.0.1", 0);
  const std::string port = port_of(first);
  const auto again = [&] { listen_tcp("127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))); };
  expect_part(error_of(again, ErrorCode::unavailable), "TCP port " + port + " of 127.0.0.1");
}

TEST(ListenTcp, an_interface_that_is_not_there_is_refused_with_those_that_are) {
  const std::string error = error_of([] { listen_tcp("eth77", 0); }, ErrorCode::unavailable);
  expect_part(error, "'eth77'");
  expect_part(error, "lo (127.0.0.1)");
}

TEST(Resolving, a_silent_name_server_is_a_timeout_that_names_the_host) {
  const Deadline limit = in(2000);
  const auto listen = [] { listen_tcp_host("slow.invalid", 29500, in(200)); };
  const auto connect = [] { connect_tcp_host("slow.invalid", "29500", in(200)); };
  expect_part(error_of(listen, ErrorCode::timeout), "slow.invalid");
  expect_part(error_of(connect, ErrorCode::timeout), "slow.invalid");
  EXPECT_LT(Clock::now(), limit);
  const std::lock_guard lock(silent_server.mutex);
  silent_server.answers = true;
  silent_server.changed.notify_all();
}

}  // namespace
}  // namespace gradwire
