// `inproc`: ranks as threads of one process. The reference that other transports are compared with.
#pragma once

#include <memory>
#include <vector>

#include "transport/router.h"

namespace gradwire {

/// The routers of `ranks` ranks, connected with one another; each may be given to its own thread.
std::vector<std::unique_ptr<Router>> make_inproc(std::uint32_t ranks, std::size_t message_bytes);

}  // namespace gradwire
