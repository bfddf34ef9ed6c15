// The one place that reads environment variables. The library never calls this by itself: the
// command line and the Python package do when they start, and a C or C++ program may.
#pragma once

namespace gradwire {

/// Applies `GRADWIRE_ISA` (scalar, avx2, …, auto). Throws `Error` that names the variable when a
/// value is wrong or a `GRADWIRE_*` variable is unknown.
void configure_from_environment();

}  // namespace gradwire
