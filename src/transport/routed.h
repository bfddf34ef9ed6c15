// Two transports as one: some peers in memory, the others over the network.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace gradwire {

/// `near` are the peers of `memory`. Either transport may be null; then the other is returned.
std::unique_ptr<Transport> route(std::unique_ptr<Transport> memory,
                                 const std::vector<std::uint32_t>& near,
                                 std::unique_ptr<Transport> network, std::uint32_t count);

}  // namespace gradwire
