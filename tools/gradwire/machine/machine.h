// What a measurement was made on.
#pragma once

#include <string>

namespace gradwire::cli {

/// The processor's own name for itself, or "unknown".
std::string cpu_name();

}  // namespace gradwire::cli
