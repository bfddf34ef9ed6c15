// `inproc`: ranks as threads of one process. The reference that other transports are compared with.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace gradwire {

/// The transports of `ranks` ranks, connected with one another; each may be given to its own
/// thread.
std::vector<std::unique_ptr<Transport>> make_inproc(std::uint32_t ranks, std::size_t message_bytes);

}  // namespace gradwire
