#include "base/checksum.h"

#include <new>

#define XXH_STATIC_LINKING_ONLY  // the size of a state
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // picks SSE2, AVX2 or AVX-512 at run time
#else
#include <xxhash.h>
#endif

namespace gradwire {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

RunningChecksum::RunningChecksum() noexcept {
  static_assert(sizeof(XXH3_state_t) <= sizeof(state_));
  static_assert(alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void RunningChecksum::take(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::value() const noexcept {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_));
}

}  // namespace gradwire
