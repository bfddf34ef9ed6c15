// `tcp`: ranks on different hosts, two connections per pair: for messages, and for talk about them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/addresses.h"
#include "transport/job.h"
#include "transport/tls.h"
#include "transport/transport.h"

namespace gradwire {

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
