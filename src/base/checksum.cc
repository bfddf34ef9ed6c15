#include "base/checksum.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // picks SSE2, AVX2 or AVX-512 at run time
#else
#include <xxhash.h>
#endif

namespace gradwire {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace gradwire
