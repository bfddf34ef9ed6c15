#include "rendezvous/encryption.h"

#include <fmt/format.h>

#include "gradwire/error.h"

namespace gradwire {

Tls choose_encryption(const EncryptionOptions& options, bool has_secret,
                      const TransportKind& kind) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::invalid_argument, message);
  };
  const std::string& asked = options.encryption;
  const CertificateFiles& files = options.files;
  const int given =
      !files.certificate.empty() + !files.private_key.empty() + !files.authority.empty();
  if (asked != "auto" && asked != "tls" && asked != "none") {
    refuse(fmt::format("there is no encryption '{}'; take auto, tls or none", asked));
  }
  if (given != 0 && given != 3) {
    refuse("TLS by certificates needs all of certificate, private_key and authority");
  }
  if (given == 3 && asked == "none") {
    refuse("certificates were given and encryption is none: leave out one of them");
  }
  if (asked == "tls" && given == 0 && !has_secret) {
    refuse(
        "encryption tls rests on a secret or on certificates: give all ranks the same secret, or "
        "certificate, private_key and authority");
  }
  // Who gives a secret counts on encryption wherever messages leave the host.
  const bool by_secret = has_secret && asked == "auto";
  const bool leaves_host = kind.reach != TransportKind::Reach::host;
  const bool counted_on = asked == "tls" || given == 3 || (by_secret && leaves_host);
  if (counted_on && !kind.no_tls.empty()) refuse(std::string(kind.no_tls));
  if (given == 3) return tls_by_certificates(files);
  return counted_on ? tls_by_key() : nullptr;
}

}  // namespace gradwire
