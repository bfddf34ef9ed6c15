#include "net/mesh.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

Error late(const std::vector<std::uint32_t>& missing, bool other_key) {
  return {ErrorCode::timeout,
          fmt::format(
              "no connection with rank {} before the deadline: {}", fmt::join(missing, ", "),
              other_key ? "who answers has another key; give all ranks the same secret"
                        : "is it running, can it reach this host, and has it the same secret?")};
}

/// Calls until somebody answers who knows the key, as often as there are connections.
std::vector<PeerConnection> call_until_accepted(const MeshOptions& options, std::uint32_t peer) {
  std::vector<PeerConnection> connections;
  bool other_key = false;
  std::size_t failures = 0;
  while (connections.size() < options.connections_per_peer) {
    if (Clock::now() >= options.deadline) throw late({peer}, other_key);
    FileDescriptor socket = options.call(peer, failures);
    const HandshakeResult result =
        socket ? shake_hands(options.identity, peer, socket.get(), options.deadline)
               : HandshakeResult{};
    if (result.accepted) {
      connections.push_back({std::move(socket), result.key});
      continue;
    }
    other_key |= result.other_key;
    ++failures;
    keep_waiting();
    poll(nullptr, 0, 20);
  }
  return connections;
}

/// Answers until all higher ranks have come, as often as there are connections.
std::map<std::uint32_t, std::vector<PeerConnection>> receive_higher(const MeshOptions& options) {
  std::vector<std::uint32_t> missing;
  std::copy_if(options.peers.begin(), options.peers.end(), std::back_inserter(missing),
               [&](std::uint32_t peer) { return peer > options.identity.me; });
  std::map<std::uint32_t, std::vector<PeerConnection>> connections;
  Acceptor acceptor(
      options.identity, options.listeners, missing.size(),
      [&](std::uint32_t rank) { return std::count(missing.begin(), missing.end(), rank) > 0; },
      [&](std::uint32_t rank, FileDescriptor socket, const Proof& key) {
        connections[rank].push_back({std::move(socket), key});
        if (connections[rank].size() == options.connections_per_peer) std::erase(missing, rank);
      });
  while (!missing.empty()) {
    if (Clock::now() >= options.deadline) throw late(missing, false);
    std::vector<pollfd> polled;
    acceptor.add_to(polled);
    poll(polled.data(), polled.size(), milliseconds_until(options.deadline));
    acceptor.look(polled);
  }
  return connections;
}

}  // namespace

std::vector<std::vector<PeerConnection>> connect_mesh(const MeshOptions& options) {
  std::map<std::uint32_t, std::vector<PeerConnection>> connections;
  for (const std::uint32_t peer : options.peers) {
    if (peer < options.identity.me) connections[peer] = call_until_accepted(options, peer);
  }
  connections.merge(receive_higher(options));
  std::vector<std::vector<PeerConnection>> sets(options.connections_per_peer);
  for (std::uint32_t set = 0; set < options.connections_per_peer; ++set) {
    for (const std::uint32_t peer : options.peers) {
      sets[set].push_back(std::move(connections[peer][set]));
      const int socket = sets[set].back().socket.get();
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    }
  }
  return sets;
}

}  // namespace gradwire
