// Several hosts on one machine, joined by links of a chosen speed, to try a job as on a cluster.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hosts/network_namespace.h"
#include "plan/link_rate.h"
#include "run/rank_run.h"

namespace gradwire::cli {

/// What every rank runs.
struct HostCommand {
  std::vector<std::string> arguments;  ///< the first names the program, as a shell would find it
  unsigned ranks_per_host = 1;
  std::uint16_t port = 29500;                      ///< MASTER_PORT
  std::map<std::string, std::string> environment;  ///< added to what this process has
};

/// Each host is a network namespace with a loopback and one interface, `eth0`, that leads to a
/// switch: a bridge in a namespace of its own. Links are shaped in both directions. Nothing of the
/// machine's network is touched, and nothing has a name that could stay behind: the kernel removes
/// all of it with this object or with this process, however that ends.
///
///     TestHosts hosts(4, parse_link_rate("1gbit"));
///     std::string result;
///     RunOptions options;
///     options.on_line = [&](const OutputLine& line) {
///       if (line.rank == 0 && line.stream == Stream::output) result += line.text;
///     };
///     const Outcome outcome = hosts.run({.arguments = {"/proc/self/exe", ...}}, options);
class TestHosts {
 public:
  static constexpr unsigned kMaxCount = 254;  // of addresses, one each
  static constexpr const char* kInterface = "eth0";

  /// Throws Error(unavailable), with what to do, unless the process has the rights of root, the
  /// programs `ip` and `tc`, and a kernel with veth, bridge and tbf.
  TestHosts(unsigned count, LinkRate link);

  /// Runs the command once per rank and waits, as RankRun does. Ranks 0 to ranks_per_host - 1 are
  /// on host 0, and so on. They find their place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  /// MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME. May be called again.
  Outcome run(const HostCommand& command, const RunOptions& options) const;

 private:
  NetworkNamespace switch_;
  std::vector<NetworkNamespace> hosts_;
};

}  // namespace gradwire::cli
