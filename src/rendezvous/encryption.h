// What a user asks for by way of encryption, checked.
#pragma once

#include <string>

#include "transport/transport_kinds.h"

namespace gradwire {

struct EncryptionOptions {
  std::string encryption = "auto";  ///< "auto", "tls" or "none".
  CertificateFiles files{};         ///< Empty: TLS rests on the secret.
};

/// How messages of this kind are encrypted; null when they are not. Throws
/// `Error(invalid_argument)` that names what to give or to leave out.
Tls choose_encryption(const EncryptionOptions& options, bool has_secret, const TransportKind& kind);

}  // namespace gradwire
