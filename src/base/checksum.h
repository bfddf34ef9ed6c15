// XXH3, 64 bits: finds damage, proves nothing about who sent the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept;

}  // namespace gradwire
