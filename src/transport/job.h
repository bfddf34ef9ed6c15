// Who belongs together.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gradwire {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// What the ranks of one job share and strangers do not know. Dealt through the store.
struct Job {
  std::array<std::byte, 16> id{};   ///< keeps jobs on one host apart; not secret
  std::array<std::byte, 32> key{};  ///< proves membership on every connection

  /// Both drawn from the system's generator. Throws `Error(unavailable)` when it has none.
  static Job random();
  /// Makes the key of the id and a secret that only members know.
  void set_key(const std::string& secret);
  std::string id_text() const;  ///< hexadecimal
};

}  // namespace gradwire
