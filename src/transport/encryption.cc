#include "transport/encryption.h"

#include <fmt/format.h>

#include "gradwire/error.h"

namespace gradwire {

Tls choose_encryption(const EncryptionOptions& options, bool has_secret,
                      const std::string& transport) {
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
  if (transport == "shm" && (asked == "tls" || given == 3)) {
    refuse(
        "shared memory leaves no host and is not encrypted: take transport auto or tcp, or no "
        "encryption");
  }
  if (transport == "mpi" && asked != "none" && (asked == "tls" || given == 3 || has_secret)) {
    refuse("messages of MPI are not encrypted: take transport tcp, or encryption none");
  }
  if (given == 3) return tls_by_certificates(files);
  return has_secret && asked != "none" && transport != "shm" ? tls_by_key() : nullptr;
}

}  // namespace gradwire
