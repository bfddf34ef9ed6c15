#include "transport/job.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>

#include "gradwire/error.h"

namespace gradwire {

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

Proof prove(std::span<const std::byte> key, std::span<const std::byte> said) {
  Proof proof;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(said.data()), said.size(),
       reinterpret_cast<unsigned char*>(proof.data()), nullptr);
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
  std::string said = "gradwire job key ";
  said.append(reinterpret_cast<const char*>(id.data()), id.size());
  key = prove(std::as_bytes(std::span(secret)), std::as_bytes(std::span(said)));
}

std::string Job::id_text() const {
  std::string text;
  for (const std::byte byte : id) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace gradwire
