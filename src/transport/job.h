// Who belongs together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gradwire/store.h"

namespace gradwire {

/// For `poll`: at most a minute, 0 when it has passed.
int milliseconds_until(Deadline deadline);

/// Shows that whoever made it knew the key and what was said.
using Proof = std::array<std::byte, 32>;

/// HMAC-SHA256.
Proof prove(std::span<const std::byte> key, std::span<const std::byte> said);
/// In a time that does not depend on where they differ.
bool equal(const Proof& a, const Proof& b);

/// From the system's generator. Throws `Error(unavailable)` when it has none.
void fill_random(std::span<std::byte> bytes);

/// What the ranks of one job share and strangers do not know. Dealt through the store.
struct Job {
  std::array<std::byte, 16> id{};   ///< keeps jobs on one host apart; not secret
  std::array<std::byte, 32> key{};  ///< proves membership on every connection

  static Job random();
  /// Makes the key of the id and a secret that only members know.
  void set_key(const std::string& secret);
  std::string id_text() const;  ///< hexadecimal
};

}  // namespace gradwire
