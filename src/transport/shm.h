// `shm`: ranks on one host, as processes. Memory without a name (memfd) is handed from process to
// process over a Unix socket: only this job's processes have it, and it is gone when they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "transport/job.h"
#include "transport/transport.h"

namespace gradwire {

/// Equal for ranks that can share memory: same boot, same network namespace, same user.
std::string shm_neighbourhood();

/// Where ranks of this host call: a Unix socket with an abstract name that nobody can guess, and
/// so cannot take before us. It has no file, and is gone with its socket.
struct ShmListener {
  FileDescriptor socket;
  std::string name;
};

/// Throws `Error(unavailable)`.
ShmListener listen_shm();

struct ShmOptions {
  Job job;
  std::uint32_t me = 0;
  std::uint32_t count = 1;
  std::vector<std::uint32_t> peers;  ///< the other ranks on this host
  std::vector<std::string> names;    ///< of all ranks' listeners, as `listen_shm` gave them
  std::size_t message_bytes = 0;
  Deadline deadline;
};

/// Throws `Error(timeout)` that names who did not come, or `Error(unavailable)`.
std::unique_ptr<Transport> connect_shm(const ShmOptions& options, ShmListener listener);

}  // namespace gradwire
