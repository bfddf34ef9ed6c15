// Ranks connect with one another: each calls the lower ranks and answers the higher ones.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/file_descriptor.h"
#include "net/handshake.h"

namespace gradwire {

/// One rank's place among its peers while connections are made.
struct Meeting {
  Side side;
  std::vector<std::uint32_t> peers;  ///< ranks to be connected with
  std::vector<int> listeners;        ///< where higher ranks call
  /// A new connection to a lower rank, or none. `failures` is how often it did not lead there.
  std::function<FileDescriptor(std::uint32_t rank, std::size_t failures)> call;
  Deadline deadline;
  std::uint32_t lines = 1;  ///< connections with every peer
};

/// A connection on which both ends have proved their membership.
struct Met {
  FileDescriptor socket;  ///< non-blocking
  Proof key{};            ///< of this connection; both ends know it and nobody else
};

/// Connects with all peers and turns strangers away. Returns, for every line, one connection per
/// peer, in their order; both ends count lines alike. Throws `Error(timeout)` that names the ranks
/// that did not come.
std::vector<std::vector<Met>> meet(const Meeting& meeting);

}  // namespace gradwire
