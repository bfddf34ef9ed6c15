// TLS 1.3 between ranks that have proved their membership: strangers do not get this far.
//
// It rests on the key of the connection (a pre-shared key with ephemeral Diffie-Hellman, so that
// who learns the secret later cannot read what was recorded) or on certificates that one authority
// signed, on both ends. Either way both ends then seal the session with a proof over what it alone
// has in common, by the connection's key: the end of the TLS session is the rank that proved its
// membership, and nobody in between.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/mesh.h"
#include "net/stream.h"

struct ssl_ctx_st;

namespace gradwire {

/// What all encrypted connections of a rank have in common. Null: they are not encrypted.
using Tls = std::shared_ptr<ssl_ctx_st>;

/// PEM files: this rank's certificate, its private key, and the authority that signed all ranks'.
struct CertificateFiles {
  std::string certificate, private_key, authority;
};

Tls tls_by_key();
/// Throws `Error(invalid_argument)` that names the file and what is wrong with it.
Tls tls_by_certificates(const CertificateFiles& files);

/// A key of AES-GCM is good for 2^24.5 records (RFC 8446, 5.5); this is 128 GiB.
inline constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

/// Encrypts the connections with `peers`: the lower rank of each is the server. Throws
/// `Error(peer_failed)` or `Error(timeout)` that names the peer.
std::vector<std::unique_ptr<Stream>> encrypt(const Tls& tls, std::uint32_t me,
                                             const std::vector<std::uint32_t>& peers,
                                             std::vector<PeerConnection> connections,
                                             Deadline deadline,
                                             std::uint64_t records_per_key = kRecordsPerKey);

}  // namespace gradwire
