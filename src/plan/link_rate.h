// How fast a link is, as people and `tc` write it: 100mbit, 2.5gbit, none.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradwire {

struct LinkRate {
  std::uint64_t bits_per_second = 0;  ///< 0: as fast as the machine is

  double bytes_per_second() const noexcept { return static_cast<double>(bits_per_second) / 8; }
  bool limited() const noexcept { return bits_per_second > 0; }
};

/// Takes a number with kbit, mbit or gbit (powers of 1000, as networks count), or "none". Throws
/// Error(invalid_argument) for anything else, and outside 8kbit to 1000gbit.
LinkRate parse_link_rate(std::string_view text);

}  // namespace gradwire
