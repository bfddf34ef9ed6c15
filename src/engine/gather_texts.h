// Texts of all ranks for all ranks: what they compare before they do the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/communicator.h"

namespace gradwire::engine {

/// Bytes of a text, and of a reason. Both travel as numbers that floats hold exactly.
inline constexpr std::size_t kLongestText = (std::size_t{1} << 23) - 1;
inline constexpr std::size_t kLongestReason = 1024;

/// A rank has called `give_up` in place of `gather_texts`: `what()` is its reason.
class GivenUp : public Error {
 public:
  explicit GivenUp(const std::string& reason) : Error(ErrorCode::peer_failed, reason) {}
};

/// The texts of all ranks, in their order. All ranks call it together; it waits for them, for twice
/// the timeout at most, 0 being the communicator's. Calls `while_waiting` as `ConnectOptions` say.
/// Throws `GivenUp`, and `Error` when an exchange fails, for a text that is too long, and when a
/// rank sends what is no text.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& own,
                                      std::chrono::milliseconds timeout = {},
                                      const std::function<void()>& while_waiting = {});

/// For a rank that cannot take part where the others call `gather_texts`, in its place: they throw
/// the reason, of which they get so many bytes. Does not wait for them.
void give_up(Communicator& ranks, const std::string& reason);

}  // namespace gradwire::engine
