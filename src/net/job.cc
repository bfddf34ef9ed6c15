#include "net/job.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/tls_error.h"

namespace gradwire {
namespace {

/// 69 ms on a core of 2026 with SHA instructions (230 ns each), three times that without. A rank
/// does this once per connection to a job, or twice with the tcp store; a guess costs as much.
constexpr int kIterations = 300'000;

std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

thread_local const std::function<void()>* waiting_hook = nullptr;

}  // namespace

WaitingHook::WaitingHook(const std::function<void()>& call) : outer_(waiting_hook) {
  waiting_hook = call ? &call : nullptr;
}

WaitingHook::~WaitingHook() { waiting_hook = outer_; }

void keep_waiting() {
  if (waiting_hook != nullptr) (*waiting_hook)();
}

int milliseconds_until(Deadline deadline) {
  keep_waiting();
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 100));
}

Proof prove(std::span<const std::byte> key, std::span<const std::byte> said) {
  Proof proof{};
  const bool made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                         reinterpret_cast<const unsigned char*>(said.data()), said.size(),
                         reinterpret_cast<unsigned char*>(proof.data()), nullptr) != nullptr;
  if (!made) throw Error(ErrorCode::unavailable, "OpenSSL has no HMAC-SHA256: " + take_tls_error());
  return proof;
}

bool equal(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::unavailable, "the system gives no random numbers (getrandom)");
  }
}

Job Job::random() {
  Job job;
  fill_random(job.id);
  fill_random(job.key);
  return job;
}

void Job::set_key(const std::string& secret) {
  const bool made = PKCS5_PBKDF2_HMAC(secret.data(), static_cast<int>(secret.size()),
                                      reinterpret_cast<const unsigned char*>(id.data()),
                                      static_cast<int>(id.size()), secret.empty() ? 1 : kIterations,
                                      EVP_sha256(), static_cast<int>(key.size()),
                                      reinterpret_cast<unsigned char*>(key.data())) == 1;
  if (!made) throw Error(ErrorCode::unavailable, "OpenSSL has no PBKDF2: " + take_tls_error());
}

std::string Job::id_text() const { return hexadecimal(id); }

std::string random_name() {
  std::array<std::byte, 16> bytes{};
  fill_random(bytes);
  return hexadecimal(bytes);
}

}  // namespace gradwire
