#include "hosts/test_hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "hosts/link_shaper.h"

namespace gradwire::cli {
namespace {

std::string address_of(std::size_t host) { return fmt::format("10.77.0.{}", host + 1); }

std::string port_of(std::size_t host) { return fmt::format("port{}", host); }

/// A bridge with one port per host. The other end of each port's cable is born in the host.
void build_switch(const NetworkNamespace& hub, const std::vector<NetworkNamespace>& hosts) {
  std::string commands = "link add switch type bridge\nlink set switch up\n";
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    commands += fmt::format("link add {} type veth peer name {} netns {}\n", port_of(host),
                            TestHosts::kInterface, hosts[host].path());
    commands += fmt::format("link set {} master switch up\n", port_of(host));
  }
  hub.configure("ip", commands);
}

void build_host(const NetworkNamespace& network, std::size_t host) {
  network.configure("ip",
                    fmt::format("link set lo up\n"
                                "address add {}/24 dev {}\n"
                                "link set {} up\n",
                                address_of(host), TestHosts::kInterface, TestHosts::kInterface));
}

std::string shape(const std::string& interface, LinkRate link) {
  return fmt::format("qdisc add dev {} root {}\n", interface, shaper_arguments(link));
}

/// A queue holds back only what leaves an interface: the host's own holds what it sends, the
/// switch's port what it receives.
void shape_links(const NetworkNamespace& hub, const std::vector<NetworkNamespace>& hosts,
                 LinkRate link) {
  std::string ports;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    hosts[host].configure("tc", shape(TestHosts::kInterface, link));
    ports += shape(port_of(host), link);
  }
  hub.configure("tc", ports);
}

using Variables = std::map<std::string, std::string>;

/// This process' environment with some variables set.
std::vector<std::string> environment_with(const Variables& changes) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) {
      environment.emplace_back(text);
    }
  }
  for (const auto& [name, value] : changes)
    environment.push_back(fmt::format("{}={}", name, value));
  return environment;
}

/// The variables that torchrun sets and PyTorch's process groups read.
Variables place_of(unsigned rank, unsigned world_size, const HostCommand& command) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_RANK", std::to_string(rank % command.ranks_per_host)},
          {"LOCAL_WORLD_SIZE", std::to_string(command.ranks_per_host)},
          {"MASTER_ADDR", address_of(0)},
          {"MASTER_PORT", std::to_string(command.port)},
          {"GLOO_SOCKET_IFNAME", TestHosts::kInterface}};
}

}  // namespace

TestHosts::TestHosts(unsigned count, LinkRate link) : hosts_(count) {
  build_switch(switch_, hosts_);
  for (std::size_t host = 0; host < count; ++host) build_host(hosts_[host], host);
  if (link.limited()) shape_links(switch_, hosts_, link);
}

Outcome TestHosts::run(const HostCommand& command, const RunOptions& options) const {
  const unsigned world_size = static_cast<unsigned>(hosts_.size()) * command.ranks_per_host;
  std::vector<RankCommand> ranks;
  for (unsigned rank = 0; rank < world_size; ++rank) {
    Variables variables = place_of(rank, world_size, command);
    variables.insert(command.environment.begin(), command.environment.end());
    ranks.push_back({command.arguments, environment_with(variables),
                     hosts_[rank / command.ranks_per_host].descriptor()});
  }
  return RankRun(ranks, options).wait();
}

}  // namespace gradwire::cli
