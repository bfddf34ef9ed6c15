// `tcp`: ranks on different hosts, two connections per pair: for messages, and for talk about them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"
#include "transport/job.h"
#include "transport/tls.h"
#include "transport/transport.h"

namespace gradwire {

/// A socket that listens, and where it can be reached.
struct TcpListener {
  FileDescriptor socket;
  std::vector<std::string> addresses;  ///< "10.0.0.3 40123", "fe80::1%eth0 40123", …
};

/// Listens on `interface` (a name or an address; empty: all) and `port` (0: any free one).
/// Throws `Error(unavailable)` that lists the interfaces when there is no such one.
TcpListener listen_tcp(const std::string& interface, std::uint16_t port);

/// A connection to one of a listener's addresses, or none. One that stays silent gets two seconds,
/// so that the next has its turn, and never more than the deadline leaves.
FileDescriptor connect_tcp_address(const std::string& address, Deadline deadline);
/// The same to a host by its name.
FileDescriptor connect_tcp_host(const std::string& host, const std::string& port,
                                Deadline deadline);

struct TcpOptions {
  Job job;
  std::uint32_t me = 0;
  std::uint32_t count = 1;
  std::vector<std::uint32_t> peers;
  std::vector<std::vector<std::string>> addresses;  ///< of all ranks, as `listen_tcp` gave them
  std::size_t max_message_bytes = 0;                ///< longer ones are garbage
  Deadline deadline;
  Tls tls = nullptr;
};

/// Throws `Error(timeout)` that names who did not come.
std::unique_ptr<Transport> connect_tcp(const TcpOptions& options, TcpListener listener);

}  // namespace gradwire
