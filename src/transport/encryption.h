// What a user asks for by way of encryption, checked.
#pragma once

#include <string>

#include "transport/tls.h"

namespace gradwire {

struct EncryptionOptions {
  std::string encryption = "auto";  ///< auto, tls or none
  CertificateFiles files{};         ///< empty: TLS rests on the secret
};

/// How tcp connections are encrypted; null when they are not. Throws `Error(invalid_argument)` that
/// names what to give or to leave out.
Tls choose_encryption(const EncryptionOptions& options, bool has_secret,
                      const std::string& transport);

}  // namespace gradwire
