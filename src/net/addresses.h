// Where this host listens for tcp, and how others are reached: over IPv4 and IPv6, or over
// whichever of them the kernel has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "gradwire/store.h"

namespace gradwire {

/// For `listen`: a crowd of strangers that fills the system's queue would keep ours out, for
/// seconds.
inline constexpr int kBacklog = 1024;

/// Sockets that listen, and where they can be reached. Of tcp: all at one port, one per address or,
/// for all addresses, one per family.
struct Listener {
  std::vector<FileDescriptor> sockets;
  std::vector<std::string> addresses;  ///< Of tcp: "10.0.0.3 40123", "fe80::1%eth0 40123", …

  std::vector<int> descriptors() const;
};

/// Listens on the addresses of `interface` (a name or an address; empty: on all) and nowhere else,
/// at `port` (0: any free one). Throws `Error(unavailable)` that lists the interfaces when there is
/// no such one.
Listener listen_tcp(const std::string& interface, std::uint16_t port);
/// Listens on the addresses that `host` has and this host owns. Throws `Error(unavailable)` that
/// lists the interfaces when there is none, `Error(timeout)` when the name is not resolved.
Listener listen_tcp_host(const std::string& host, std::uint16_t port, Deadline deadline);

/// Interfaces that are up, for error messages: "eth0 (10.0.0.3), lo (127.0.0.1)".
std::string list_interfaces();

/// A connection to one of a listener's addresses, or none. One that stays silent gets two seconds,
/// so that the next has its turn, and never more than the deadline leaves.
FileDescriptor connect_tcp_address(const std::string& address, Deadline deadline);
/// The same to a host by its name. Throws `Error(timeout)` that names the host when the system does
/// not resolve it in time.
FileDescriptor connect_tcp_host(const std::string& host, const std::string& port,
                                Deadline deadline);

}  // namespace gradwire
