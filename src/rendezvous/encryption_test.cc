#include "rendezvous/encryption.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"
#include "net/test_authority.h"

namespace gradwire::test {
namespace {

TEST(Encryption, is_what_was_asked_for_or_a_sentence) {
  const TestAuthority authority;
  const CertificateFiles files = authority.issue("rank");
  const CertificateFiles partly{files.certificate, files.private_key, ""};
  const struct {
    EncryptionOptions options;
    bool secret;
    const TransportKind& kind;
    std::string expected;
  } cases[] = {
      {{"auto", {}}, false, kTcp, "plain"},
      {{"auto", {}}, true, kTcp, "tls"},
      {{"auto", {}}, true, kShm, "plain"},
      {{"auto", files}, false, kTcp, "tls"},
      {{"none", {}}, true, kTcp, "plain"},
      {{"tls", {}}, true, kTcp, "tls"},
      {{"tls", {}}, false, kTcp, "give all ranks the same secret"},
      {{"tls", {}}, true, kShm, "take transport auto or tcp"},
      {{"auto", files}, false, kShm, "take transport auto or tcp"},
      {{"auto", {}}, false, kMpi, "plain"},
      {{"none", {}}, true, kMpi, "plain"},
      {{"auto", {}}, true, kMpi, "take transport tcp, or encryption none"},
      {{"auto", files}, false, kMpi, "take transport tcp, or encryption none"},
      {{"none", files}, false, kTcp, "leave out one of them"},
      {{"auto", partly}, true, kTcp, "needs all of certificate, private_key and authority"},
      {{"ssl", {}}, true, kTcp, "take auto, tls or none"},
  };
  for (const auto& each : cases) {
    std::string found;
    try {
      found = choose_encryption(each.options, each.secret, each.kind) ? "tls" : "plain";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      found = error.what();
    }
    EXPECT_NE(found.find(each.expected), std::string::npos) << each.expected << "\n" << found;
  }
}

}  // namespace
}  // namespace gradwire::test
