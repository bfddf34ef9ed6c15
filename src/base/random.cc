#include "gradwire/random.h"

#include "base/random_stream.h"

namespace gradwire {

std::uint16_t random_bits(const RandomKey& key, std::uint64_t index) noexcept {
  const std::uint32_t hash = hash_counter(counter_of(index), stream_key(fold(key), index));
  const bool second_half = (index / 16) % 2 != 0;
  return static_cast<std::uint16_t>(second_half ? hash >> 16 : hash);
}

}  // namespace gradwire
