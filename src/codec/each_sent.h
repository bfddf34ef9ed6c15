// The numbers that a sparse codec sent, one by one, for feedback: what was sent is not held back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/codec.h"

namespace gradwire {

/// A reference to a function that takes some numbers of a tensor, and where they stand.
class NumberSink {
 public:
  template <class Take>
  NumberSink(Take& take) noexcept
      : take_(&take), call_([](void* to, Places places, Numbers numbers) noexcept {
          (*static_cast<Take*>(to))(places, numbers);
        }) {}

  void operator()(std::span<const std::uint64_t> places,
                  std::span<const float> numbers) const noexcept {
    call_(take_, places, numbers);
  }

 private:
  using Places = std::span<const std::uint64_t>;
  using Numbers = std::span<const float>;

  void* take_;
  void (*call_)(void* to, Places places, Numbers numbers) noexcept;
};

/// Of a sparse codec: calls `sink` with the numbers that were sent, a few at a time. All others of
/// the `count` are 0; those of a place that comes twice add up. Of any other codec:
/// invalid_argument.
Status each_sent(const Codec& codec, std::span<const std::byte> payload, Dtype source,
                 std::size_t count, NumberSink sink) noexcept;

}  // namespace gradwire
