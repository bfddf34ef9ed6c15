// Which vector instructions the kernels use. Every choice gives the same bytes and the same floats;
// they differ in speed alone. The widest set that the CPU has is the default.
//
// The setting is one per process and may be changed between, not during, calls that encode or
// decode.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

/// What this CPU and build offer, slowest first; "scalar" is always the first.
std::vector<std::string> available_isas();

/// The one in use, e.g. "avx2".
std::string current_isa();

/// Uses `name` from now on; "auto" picks the best. Throws `Error(unavailable)` that lists what
/// there is.
void use_isa(std::string_view name);

}  // namespace gradwire
