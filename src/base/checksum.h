// XXH3, 64 bits: finds damage, proves nothing about who sent the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept;

/// The checksum of bytes that come bit by bit, taken while they are in the cache.
class RunningChecksum {
 public:
  RunningChecksum() noexcept;
  void take(std::span<const std::byte> bytes) noexcept;
  std::uint64_t value() const noexcept;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace gradwire
