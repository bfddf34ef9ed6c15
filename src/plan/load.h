// What an option asks of codecs and links, for a tensor of some size: the planner's size algebra.
//
// Along an option every rank that takes part has some elements, in some messages that nobody has
// added up yet. A hop to owners divides the elements by the ranks of its level and multiplies the
// messages; one from owners gives the elements back; decoding adds all messages up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/option.h"

namespace gradwire {

/// Hosts that are alike.
struct Cluster {
  std::uint32_t hosts = 1;
  std::uint32_t ranks_per_host = 1;

  std::uint32_t ranks() const noexcept { return hosts * ranks_per_host; }
};

/// One stretch of an option, for whoever has most to do in it.
struct Load {
  enum class Kind : std::uint8_t { encode, decode, inside, between };
  Kind kind;
  bool exact = false;
  bool beside = false;  ///< it does not wait for the one before

  // Codecs
  Device device = Device::own;
  double elements = 0;  ///< at once
  double times = 0;

  // Links, of a rank inside a host and of a host between them, in elements
  double messages = 0;  ///< one after the other
  double sent = 0;
  double received = 0;
  double total = 0;    ///< that all ranks send
  double of_rank = 0;  ///< that the busiest rank sends or receives

  friend bool operator==(const Load&, const Load&) = default;
};

/// In the order in which a number meets them. A rank that is alone at a level does nothing there.
std::vector<Load> loads_of(const Option& option, std::size_t elements, const Cluster& cluster);
/// Of legs that need no second device, as algorithms with a name have them.
std::vector<Load> loads_of(std::span<const Leg> legs, std::size_t elements, const Cluster& cluster);

}  // namespace gradwire
