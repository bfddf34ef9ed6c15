// How much of a machine an exchange takes: threads, and numbers under way at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

/// For all messages of a piece, of a communicator whose user has no wish.
inline constexpr std::size_t kLaneBytes = std::size_t{8} << 20;

/// What pieces of tensors must fit.
struct PieceLimits {
  std::uint32_t ranks = 1;
  bool in_memory = false;      ///< no message leaves the host
  std::size_t asked = 0;       ///< elements that the user wants in a piece; 0: no wish
  std::size_t lane_bytes = 0;  ///< for all messages of a piece
};

/// Elements of a piece, a multiple of `kSliceAlignment`. Over a network: so many that messages are
/// large. In memory: so few that the caches hold them. Of sparse codecs: as many as fit, so that
/// headers do not count.
std::size_t piece_elements(const PieceLimits& limits, bool sparse) noexcept;

/// Threads that encode and decode besides the one that moves messages. `asked` are all of them; 0:
/// no wish. `cores` are this rank's share of its host's.
std::uint32_t codec_threads(std::uint32_t cores, std::uint32_t asked) noexcept;

}  // namespace gradwire
