// The one place that reads environment variables. The library never calls this by itself: the
// command line and the Python package do when they start, and a C or C++ program may.
#pragma once

namespace gradwire {

/// Applies `GRADWIRE_ISA` (scalar, avx2, …, auto). Throws `Error` that names the variable when a
/// value is wrong or a `GRADWIRE_*` variable is unknown. Those of gradwire.torch (docs/torch.md)
/// are known and not looked at.
void configure_from_environment();

}  // namespace gradwire
