#include "gradwire/random.h"

#include "base/random_stream.h"

namespace gradwire {

std::uint16_t random_bits(const RandomKey& key, std::uint64_t index) noexcept {
  return draw(fold(key), index);
}

}  // namespace gradwire
