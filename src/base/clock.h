// The clock that deadlines (`gradwire/store.h`) are told by.
#pragma once

#include <chrono>

namespace gradwire {

using Clock = std::chrono::steady_clock;

}  // namespace gradwire
