// The ways to exchange gradients that `bench train` compares, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::cli {

/// Splits "gloo,fp16,uniform:bits=4,bucket=128,grid" at its commas, except before what can only be
/// a codec's next setting: a key with a value and no name. Throws Error(invalid_argument or
/// invalid_spec) for a name that is neither gloo, one of torch's hooks (fp16, bf16, powersgd,
/// powersgd:rank=N), residual with or without settings, nor a way, such as a codec or
/// "sign+feedback".
std::vector<std::string> parse_training_methods(std::string_view text);

}  // namespace gradwire::cli
