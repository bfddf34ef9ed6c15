// From a store to a connected transport.
#pragma once

#include <memory>
#include <string>

#include "transport/encryption.h"
#include "transport/store.h"
#include "transport/transport.h"

namespace gradwire {

struct RendezvousOptions {
  std::uint32_t me = 0;
  std::uint32_t count = 1;
  std::string secret;  ///< empty: the key is dealt through the store
  EncryptionOptions encryption;
  std::string transport = "auto";  ///< auto, shm, tcp or mpi
  bool launched_by_mpi = false;    ///< then auto is mpi between hosts
  std::string interface;
  std::uint16_t port = 0;
  std::size_t message_bytes = 0;  ///< of send memory, and the longest message
  bool traced = false;            ///< the same on all ranks
  Deadline deadline;
};

struct Connected {
  std::unique_ptr<Transport> transport;
  /// Ranks per host, when all hosts have as many and their ranks stand together; else 0.
  std::uint32_t per_host = 0;
  std::uint32_t on_this_host = 1;
  bool all_in_memory = false;  ///< nothing leaves this host
};

/// Throws `Error(invalid_argument)` when there is no such transport or encryption, or not both
/// together. Returns how tcp connections are to be encrypted.
Tls check_transport(const RendezvousOptions& options);

/// Throws `Error(timeout)` that names who did not come, or as `check_transport`.
Connected rendezvous(Store& store, const RendezvousOptions& options);

}  // namespace gradwire
