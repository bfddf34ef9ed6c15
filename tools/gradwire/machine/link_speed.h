// What a plain TCP stream gets through the links between ranks: the limit for everything built on
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous/store.h"

namespace gradwire::cli {

/// Every rank streams to the next one, all at once, for `duration`. Returns the bytes per second
/// that arrived at this rank. All ranks call it at the same time.
double measure_link_speed(Store& store, std::uint32_t rank, std::uint32_t size,
                          std::chrono::milliseconds duration);

}  // namespace gradwire::cli
