// From a store to connections with all ranks.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/encryption.h"
#include "rendezvous/store.h"
#include "transport/router.h"

namespace gradwire {

struct RendezvousOptions {
  std::uint32_t me = 0;
  std::uint32_t count = 1;
  std::string secret;  ///< Empty: the key is dealt through the store.
  EncryptionOptions encryption;
  std::string transport = "auto";  ///< "auto", or the name of a `TransportKind`.
  bool launched_by_mpi = false;    ///< If so, auto takes mpi between hosts.
  std::string interface;
  std::uint16_t port = 0;
  std::size_t message_bytes = 0;  ///< The longest message, and the size of send memory.
  bool traced = false;            ///< The same on all ranks.
  Deadline deadline;
};

struct Connected {
  std::unique_ptr<Router> router;
  /// Ranks per host, when all hosts have as many and their ranks stand together; else 0.
  std::uint32_t per_host = 0;
  std::uint32_t on_this_host = 1;
  bool all_in_memory = false;  ///< True when no message of this rank leaves the host.
};

/// Throws `Error(invalid_argument)` when there is no such transport or encryption, or not both
/// together. Returns how tcp connections are to be encrypted.
Tls check_transport(const RendezvousOptions& options);

/// Throws `Error(timeout)` that names who did not come, or as `check_transport`.
Connected rendezvous(Store& store, const RendezvousOptions& options);

}  // namespace gradwire
