#include "net/tls.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "gradwire/error.h"
#include "net/tls_error.h"

namespace gradwire {
namespace {

// Both hash by SHA-256, as the pre-shared key's binder does; the second is for CPUs without AES.
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::size_t kReadAhead = 65536;  // four records per call of the system

Tls new_tls() {
  Tls tls(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  const bool ready = tls && SSL_CTX_set_min_proto_version(tls.get(), TLS1_3_VERSION) == 1 &&
                     SSL_CTX_set_max_proto_version(tls.get(), TLS1_3_VERSION) == 1 &&
                     SSL_CTX_set_ciphersuites(tls.get(), kSuites) == 1 &&
                     SSL_CTX_set1_groups_list(tls.get(), "X25519:P-256") == 1;
  if (!ready) throw Error(ErrorCode::unavailable, "OpenSSL has no TLS 1.3: " + take_tls_error());
  SSL_CTX_set_options(tls.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(tls.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(tls.get(), 0);
  // Without a key the other end must show a certificate; by key alone no authority is trusted.
  SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_read_ahead(tls.get(), 1);
  SSL_CTX_set_default_read_buffer_len(tls.get(), kReadAhead);
  return tls;
}

[[noreturn]] void refuse(const std::string& message) {
  ERR_clear_error();
  throw Error(ErrorCode::invalid_argument, message);
}

void check_readable(const char* what, const std::string& path) {
  if (!std::ifstream(path)) {
    refuse(fmt::format("cannot read the {} '{}': {}", what, path, std::strerror(errno)));
  }
}

void load_own(SSL_CTX* tls, const CertificateFiles& files) {
  if (SSL_CTX_use_certificate_chain_file(tls, files.certificate.c_str()) != 1) {
    refuse(fmt::format("'{}' is no certificate in PEM: {}", files.certificate, take_tls_error()));
  }
  // OpenSSL would ask for a password on the terminal.
  SSL_CTX_set_default_passwd_cb(tls, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_PrivateKey_file(tls, files.private_key.c_str(), SSL_FILETYPE_PEM) != 1 &&
      ERR_GET_LIB(ERR_peek_last_error()) != ERR_LIB_X509) {
    refuse(fmt::format("'{}' is no private key in PEM without a password: {}", files.private_key,
                       take_tls_error()));
  }
  if (SSL_CTX_check_private_key(tls) != 1) {
    refuse(fmt::format("the private key '{}' does not belong to the certificate '{}'",
                       files.private_key, files.certificate));
  }
}

/// Also that the authority signed this rank's certificate: better known here than by the others.
void load_authority(SSL_CTX* tls, const CertificateFiles& files) {
  if (SSL_CTX_load_verify_locations(tls, files.authority.c_str(), nullptr) != 1) {
    refuse(fmt::format("'{}' is no certificate of an authority in PEM: {}", files.authority,
                       take_tls_error()));
  }
  if (SSL_CTX_build_cert_chain(
          tls, SSL_BUILD_CHAIN_FLAG_UNTRUSTED | SSL_BUILD_CHAIN_FLAG_NO_ROOT) != 1) {
    refuse(fmt::format("the authority '{}' does not vouch for the certificate '{}': {}",
                       files.authority, files.certificate, take_tls_error()));
  }
}

}  // namespace

Tls tls_by_key() { return new_tls(); }

Tls tls_by_certificates(const CertificateFiles& files) {
  check_readable("certificate", files.certificate);
  check_readable("private key", files.private_key);
  check_readable("certificate of the authority", files.authority);
  Tls tls = new_tls();
  load_own(tls.get(), files);
  load_authority(tls.get(), files);
  return tls;
}

}  // namespace gradwire
