// The list of transports by which ranks connect. A transport is one file that defines a
// `TransportKind`, plus two lines at the end of this one: ranks find it by its name.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/addresses.h"
#include "net/job.h"
#include "net/tls.h"
#include "transport/transport.h"

namespace gradwire {

struct TransportOptions {
  Job job;
  std::uint32_t me = 0;
  std::uint32_t count = 1;                          ///< All ranks of the job.
  std::vector<std::uint32_t> peers;                 ///< The ranks to connect with.
  std::vector<std::vector<std::string>> addresses;  ///< Of all ranks' listeners.
  std::size_t message_bytes = 0;  ///< The longest message, and the size of send memory.
  Deadline deadline;
  Tls tls = nullptr;  ///< Null: messages are not encrypted.
};

struct TransportKind {
  enum class Reach : std::uint8_t { host, everywhere };
  enum class Auto : std::uint8_t { always, without_mpi, with_mpi };

  std::string_view name;
  /// `host`: ranks that can share memory.
  Reach reach;
  /// Whether `auto` considers it: always, or by whether MPI started the ranks. Of those that reach
  /// a peer it takes the first in the list.
  Auto in_auto;
  /// Why encryption is refused. Empty: it has TLS.
  std::string_view no_tls;
  /// Opens what other ranks call. Null: they need no address. A kind that is not the last in the
  /// list to listen has one address.
  Listener (*listen)(const std::string& interface, std::uint16_t port);
  /// Closes the listener when all peers have come. Throws `Error(timeout)` that names those that
  /// did not.
  std::unique_ptr<Transport> (*connect)(const TransportOptions& options, Listener&& listener);
};

extern const TransportKind kShm;
extern const TransportKind kTcp;
extern const TransportKind kMpi;

inline constexpr std::array kTransportKinds = {&kShm, &kTcp, &kMpi};

}  // namespace gradwire
