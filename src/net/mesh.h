// Ranks connect with one another: each calls the lower ranks and answers the higher ones.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/file_descriptor.h"
#include "net/handshake.h"

namespace gradwire {

struct MeshOptions {
  Identity identity;
  std::vector<std::uint32_t> peers;  ///< The ranks to connect with.
  std::vector<int> listeners;        ///< Sockets at which higher ranks call.
  /// Opens a connection to a lower rank, or none. `failures` counts those that did not lead there.
  std::function<FileDescriptor(std::uint32_t rank, std::size_t failures)> call;
  Deadline deadline;
  std::uint32_t connections_per_peer = 1;
};

/// A connection on which both ends have proved their membership.
struct PeerConnection {
  FileDescriptor socket;  ///< Does not block.
  Proof key{};            ///< The session key: both ends know it and nobody else.
};

/// Connects with all peers and turns strangers away. Returns `connections_per_peer` sets, each with
/// one connection per peer, in their order; both ends count the sets alike. Throws `Error(timeout)`
/// that names the ranks that did not come.
std::vector<std::vector<PeerConnection>> connect_mesh(const MeshOptions& options);

}  // namespace gradwire
