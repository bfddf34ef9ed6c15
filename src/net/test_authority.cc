#include "net/test_authority.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <memory>

namespace gradwire::test {
namespace {

constexpr long kDay = 24L * 3600;

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;
File create(const std::string& path) { return {std::fopen(path.c_str(), "w"), &std::fclose}; }

EVP_PKEY* key_of(const std::shared_ptr<void>& key) { return static_cast<EVP_PKEY*>(key.get()); }
X509* certificate_of(const std::shared_ptr<void>& it) { return static_cast<X509*>(it.get()); }

std::shared_ptr<void> new_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

/// A certificate for `key` that somebody has yet to sign; without an issuer, its own.
std::shared_ptr<void> new_certificate(const std::string& name, EVP_PKEY* key, X509* issuer,
                                      int days) {
  X509* const made = X509_new();
  X509_set_version(made, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(made), -10 * kDay);
  X509_gmtime_adj(X509_getm_notAfter(made), days * kDay);
  X509_set_pubkey(made, key);
  X509_NAME* const subject = X509_get_subject_name(made);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(made, issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer == nullptr ? made : issuer, made, nullptr, nullptr, 0);
  X509_EXTENSION* const constraints =
      X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints,
                          issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  X509_add_ext(made, constraints, -1);
  X509_EXTENSION_free(constraints);
  return {made, X509_free};
}

}  // namespace

TestAuthority::TestAuthority() {
  std::string pattern = std::filesystem::temp_directory_path() / "gradwire-authority-XXXXXX";
  directory_ = mkdtemp(pattern.data());
  key_ = new_key();
  certificate_ = new_certificate("authority", key_of(key_), nullptr, 2);
  X509_sign(certificate_of(certificate_), key_of(key_), EVP_sha256());
  PEM_write_X509(create(path("authority.pem")).get(), certificate_of(certificate_));
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

CertificateFiles TestAuthority::issue(const std::string& name, int days) const {
  const CertificateFiles files{path(name + ".pem"), path(name + ".key"), path("authority.pem")};
  const std::shared_ptr<void> key = new_key();
  const std::shared_ptr<void> made =
      new_certificate(name, key_of(key), certificate_of(certificate_), days);
  X509_sign(certificate_of(made), key_of(key_), EVP_sha256());
  PEM_write_X509(create(files.certificate).get(), certificate_of(made));
  PEM_write_PrivateKey(create(files.private_key).get(), key_of(key), nullptr, nullptr, 0, nullptr,
                       nullptr);
  return files;
}

}  // namespace gradwire::test
