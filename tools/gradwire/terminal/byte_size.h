// Sizes as people write them: 256K, 128M, 1G, in powers of 1024.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradwire::cli {

/// Throws Error(invalid_argument) for what is not a size.
std::size_t parse_byte_size(std::string_view text);

/// "256 KiB", "128 MiB", "1000 B".
std::string format_byte_size(std::size_t bytes);

}  // namespace gradwire::cli
