// Both ends of a new connection prove that they know the job's key, without showing it.
//
//   caller   -> Hello     job, ranks, a fresh nonce
//   answerer -> Answer    its own nonce, and a proof over both
//   caller   -> Proof     the same, the other way round
//
// Proofs are HMAC-SHA256 over everything said before, so nothing can be replayed: each side's nonce
// is new. A stranger can make us keep one `Hello` per connection for a few seconds, nothing more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "transport/file_descriptor.h"
#include "transport/job.h"

namespace gradwire {

/// What the connection is for. One that was made for something else is refused.
enum class Purpose : std::uint16_t { shm = 1, tcp = 2 };

struct Hello {
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  Purpose purpose = Purpose::tcp;
  std::array<std::byte, 16> job{};
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(Hello) == 64);

using Proof = std::array<std::byte, 32>;

struct Answer {
  std::array<std::byte, 32> nonce{};
  Proof proof{};
};

/// One rank's place among its peers while connections are made.
struct Meeting {
  const Job& job;
  Purpose purpose;
  std::uint32_t me;
  std::vector<std::uint32_t> peers;                        ///< ranks to be connected with
  int listener;                                            ///< where higher ranks call
  std::function<FileDescriptor(std::uint32_t rank)> call;  ///< a new connection to a lower rank
  Deadline deadline;
};

/// Connects with all peers: calls the lower ranks, answers the higher ones, turns strangers away.
/// Returns one socket per peer, in their order, non-blocking. Throws `Error(timeout)` that names
/// the ranks that did not come.
std::vector<FileDescriptor> meet(const Meeting& meeting);

}  // namespace gradwire
