// Certificates for tests, made on the spot.
#pragma once

#include <filesystem>
#include <string>

#include "net/tls.h"

namespace gradwire::test {

/// An authority with its files in a directory of its own, which is gone afterwards.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  /// Signs a new certificate. `days`: how long it is good for; negative: it was, until yesterday.
  CertificateFiles issue(const std::string& name, int days = 1) const;
  /// A file beside the certificates.
  std::string path(const std::string& name) const { return directory_ / name; }

 private:
  std::filesystem::path directory_;
  std::shared_ptr<void> key_;          // EVP_PKEY
  std::shared_ptr<void> certificate_;  // X509
};

}  // namespace gradwire::test
