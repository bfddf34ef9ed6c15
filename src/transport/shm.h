// `shm`: ranks on one host, as processes. Memory without a name (memfd) is handed from process to
// process over a Unix socket: only this job's processes have it, and it is gone when they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/job.h"
#include "transport/transport.h"

namespace gradwire {

/// Equal for ranks that can share memory: same boot, same network namespace, same user.
std::string shm_neighbourhood();

struct ShmOptions {
  Job job;
  std::uint32_t me = 0;
  std::uint32_t count = 1;
  std::vector<std::uint32_t> peers;  ///< the other ranks on this host
  std::size_t message_bytes = 0;
  Deadline deadline;
};

/// Throws `Error(timeout)` that names who did not come, or `Error(unavailable)`.
std::unique_ptr<Transport> connect_shm(const ShmOptions& options);

}  // namespace gradwire
