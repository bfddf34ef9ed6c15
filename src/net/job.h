// Who belongs together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "gradwire/store.h"

namespace gradwire {

/// While it lives, this thread's `keep_waiting` calls `call`, which may throw to end the waiting.
class WaitingHook {
 public:
  explicit WaitingHook(const std::function<void()>& call);
  ~WaitingHook();
  WaitingHook(const WaitingHook&) = delete;
  WaitingHook& operator=(const WaitingHook&) = delete;

 private:
  const std::function<void()>* outer_;  // the call may connect, too
};

/// In every loop that waits for others while ranks connect.
void keep_waiting();

/// For `poll` in such a loop, 0 when the deadline has passed: at most a tenth of a second, so that
/// `keep_waiting`, which it calls, is called often enough.
int milliseconds_until(Deadline deadline);

/// Shows that whoever made it knew the key and what was said.
using Proof = std::array<std::byte, 32>;

/// HMAC-SHA256. Throws `Error(unavailable)` when OpenSSL refuses it.
Proof prove(std::span<const std::byte> key, std::span<const std::byte> said);
/// In a time that does not depend on where they differ.
bool equal(const Proof& a, const Proof& b);

/// From the system's generator. Throws `Error(unavailable)` when it has none.
void fill_random(std::span<std::byte> bytes);

/// What the ranks of one job share and strangers do not know. Dealt through the store.
struct Job {
  std::array<std::byte, 16> id{};   ///< Keeps jobs on one host apart. It is not secret.
  std::array<std::byte, 32> key{};  ///< Proves membership on every connection.

  static Job random();
  /// Makes the key of the id and a secret that only members know, by so much work that guessing is
  /// slow (PBKDF2). Throws `Error(unavailable)` when OpenSSL refuses it.
  void set_key(const std::string& secret);
  std::string id_text() const;  ///< hexadecimal
};

/// 32 hexadecimal digits that nobody can guess.
std::string random_name();

}  // namespace gradwire
