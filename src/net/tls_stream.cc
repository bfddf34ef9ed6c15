#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/tls.h"
#include "net/tls_error.h"

namespace gradwire {
namespace {

constexpr unsigned char kName[] = {'g', 'r', 'a', 'd', 'w', 'i', 'r', 'e'};
constexpr std::size_t kRecordBytes = 16384;       // the longest that TLS has
constexpr std::size_t kBatch = 4 * kRecordBytes;  // encrypted before the system is called
constexpr std::size_t kRoom = kBatch + 2 * kRecordBytes;

Proof derive(const Proof& key, std::string_view word, std::span<const std::byte> rest = {}) {
  std::vector<std::byte> said(word.size() + rest.size());
  std::memcpy(said.data(), word.data(), word.size());
  std::copy(rest.begin(), rest.end(), said.begin() + static_cast<std::ptrdiff_t>(word.size()));
  return prove(key, said);
}

/// OpenSSL reads from the socket and writes to `unsent_`: so it never stops within a record, and
/// several records go to the system at once, without SIGPIPE.
class TlsStream final : public Stream {
 public:
  TlsStream(SSL_CTX* tls, PeerConnection connection, std::uint32_t peer, bool calls,
            std::uint64_t records_per_key)
      : below_(plain_stream(std::move(connection.socket))),
        key_(connection.key),
        peer_(peer),
        calls_(calls),
        records_per_key_(records_per_key),
        ssl_(SSL_new(tls), SSL_free) {
    BIO* const bio = ssl_ ? BIO_new(bio_method()) : nullptr;
    if (bio == nullptr) throw std::bad_alloc();
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_app_data(ssl_.get(), this);
    if (SSL_get_certificate(ssl_.get()) == nullptr) {
      SSL_set_psk_use_session_callback(ssl_.get(), use_key);
      SSL_set_psk_find_session_callback(ssl_.get(), find_key);
    }
    calls ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
    // A server that verifies must give its sessions a name, of which it makes no use here.
    if (!calls) SSL_set_session_id_context(ssl_.get(), kName, sizeof(kName));
    unsent_.reserve(kRoom);
  }
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  std::ptrdiff_t read(std::span<std::byte> to) noexcept override {
    ERR_clear_error();
    std::size_t n = 0;
    const int result = SSL_read_ex(ssl_.get(), to.data(), to.size(), &n);
    drained_ = result != 1;
    if (result == 1) return static_cast<std::ptrdiff_t>(n);
    return would_block(result) ? kWouldBlock : kClosed;
  }

  std::ptrdiff_t write(std::span<const std::byte> from, bool more) noexcept override {
    if (unsent_.size() >= kBatch) flush();
    if (unsent_.size() >= kBatch) return closed_ ? kClosed : kWouldBlock;
    std::size_t taken = 0;
    while (taken < from.size() && unsent_.size() < kBatch) {
      const auto record = from.subspan(taken, std::min(from.size() - taken, kRecordBytes));
      if (!encrypt(record)) return kClosed;
      taken += record.size();
    }
    if (!more) flush();
    return closed_ ? kClosed : static_cast<std::ptrdiff_t>(taken);
  }

  bool flush() noexcept override {
    std::size_t sent = 0;
    while (sent < unsent_.size()) {
      const std::ptrdiff_t n = below_->write(std::span(unsent_).subspan(sent), false);
      closed_ |= n == kClosed;
      if (n < 0) break;
      sent += static_cast<std::size_t>(n);
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
    return unsent_.empty();
  }

  int descriptor() const noexcept override { return below_->descriptor(); }
  bool has_buffered() const noexcept override {
    return !drained_ && SSL_has_pending(ssl_.get()) == 1;
  }

  std::uint32_t peer() const { return peer_; }

  /// Goes on with the handshake; true when both ends have sealed it.
  bool join() {
    if (stage_ == Stage::shaking) shake_hands();
    if (stage_ == Stage::sealing) read_seal();
    return flush() && stage_ == Stage::joined;
  }
  short events() const { return static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT); }

 private:
  enum class Stage { shaking, sealing, joined };

  bool would_block(int result) const noexcept {
    return SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ;
  }

  bool encrypt(std::span<const std::byte> record) noexcept {
    ERR_clear_error();
    if (++records_ % records_per_key_ == 0) {
      SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    std::size_t n = 0;
    return SSL_write_ex(ssl_.get(), record.data(), record.size(), &n) == 1;
  }

  void shake_hands() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result != 1) {
      if (would_block(result)) return;
      flush();  // tells the peer what is wrong
      throw failed();
    }
    const Proof own = seal(calls_);
    if (write(own, false) != sizeof(own)) throw failed();
    stage_ = Stage::sealing;
  }

  void read_seal() {
    const std::ptrdiff_t n = read(std::span(seal_).subspan(seal_have_));
    if (n == kWouldBlock) return;
    if (n == kClosed) throw failed();
    seal_have_ += static_cast<std::size_t>(n);
    if (seal_have_ < sizeof(seal_)) return;
    if (!equal(seal_, seal(!calls_))) {
      throw Error(ErrorCode::peer_failed,
                  fmt::format("TLS with rank {}: the other end is not the rank that proved its "
                              "membership; somebody stands in between",
                              peer_));
    }
    stage_ = Stage::joined;
  }

  Proof seal(bool of_caller) const {
    constexpr std::string_view kLabel = "EXPORTER-gradwire";
    Proof exported{};
    SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(exported.data()),
                               exported.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0);
    return derive(key_, of_caller ? "caller's seal" : "answerer's seal", exported);
  }

  Error failed() const {
    const bool refused = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED;
    std::string reason = take_tls_error();
    if (refused) {
      reason +=
          std::string(": ") + X509_verify_cert_error_string(SSL_get_verify_result(ssl_.get()));
    }
    return {ErrorCode::peer_failed,
            fmt::format("TLS with rank {} failed: {}; all ranks need the same secret, or "
                        "certificates of the same authority",
                        peer_, reason)};
  }

  // The key, as OpenSSL wants it: a session that both ends remember.

  SSL_SESSION* new_session() const {
    constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};  // for its hash
    const Proof shared = derive(key_, "pre-shared key");
    SSL_SESSION* const session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(shared.data()),
                                shared.size());
    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl_.get(), kAes128GcmSha256));
    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    return session;
  }
  static const TlsStream& of(SSL* ssl) { return *static_cast<TlsStream*>(SSL_get_app_data(ssl)); }
  static int use_key(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
                     SSL_SESSION** session) {
    *id = kName;
    *id_bytes = sizeof(kName);
    *session = of(ssl).new_session();
    return 1;
  }
  static int find_key(SSL* ssl, const unsigned char*, std::size_t, SSL_SESSION** session) {
    *session = of(ssl).new_session();
    return 1;
  }

  // OpenSSL's door to the socket.

  static TlsStream& of(BIO* bio) { return *static_cast<TlsStream*>(BIO_get_data(bio)); }
  static int bio_read(BIO* bio, char* to, int bytes) noexcept {
    TlsStream& stream = of(bio);
    BIO_clear_retry_flags(bio);
    const auto room = std::span(to, static_cast<std::size_t>(bytes));
    const std::ptrdiff_t n = stream.below_->read(std::as_writable_bytes(room));
    if (n == kWouldBlock) BIO_set_retry_read(bio);
    stream.closed_ |= n == kClosed;
    return n < 0 ? -1 : static_cast<int>(n);
  }
  static int bio_write(BIO* bio, const char* from, int bytes) noexcept {
    std::vector<std::byte>& unsent = of(bio).unsent_;
    const auto added = std::as_bytes(std::span(from, static_cast<std::size_t>(bytes)));
    try {
      unsent.insert(unsent.end(), added.begin(), added.end());
    } catch (const std::bad_alloc&) {
      return -1;
    }
    return bytes;
  }
  static long bio_control(BIO* bio, int command, long, void*) noexcept {
    if (command == BIO_CTRL_EOF) return of(bio).closed_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static const BIO_METHOD* bio_method() {
    static const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> kMethod = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gradwire");
      if (made == nullptr) throw std::bad_alloc();
      BIO_meth_set_read(made, bio_read);
      BIO_meth_set_write(made, bio_write);
      BIO_meth_set_ctrl(made, bio_control);
      return std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)>(made, BIO_meth_free);
    }();
    return kMethod.get();
  }

  std::unique_ptr<Stream> below_;
  Proof key_;
  std::uint32_t peer_;
  bool calls_;
  std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;
  std::vector<std::byte> unsent_;  // encrypted
  bool closed_ = false;
  bool drained_ = true;  // OpenSSL holds no whole record
  Stage stage_ = Stage::shaking;
  Proof seal_{};
  std::size_t seal_have_ = 0;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

}  // namespace

std::vector<std::unique_ptr<Stream>> encrypt(const Tls& tls, std::uint32_t me,
                                             const std::vector<std::uint32_t>& peers,
                                             std::vector<PeerConnection> connections,
                                             Deadline deadline, std::uint64_t records_per_key) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<TlsStream*> joining;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto stream = std::make_unique<TlsStream>(tls.get(), std::move(connections[i]), peers[i],
                                              peers[i] < me, records_per_key);
    joining.push_back(stream.get());
    streams.push_back(std::move(stream));
  }
  while (true) {
    std::erase_if(joining, [](TlsStream* stream) { return stream->join(); });
    if (joining.empty()) return streams;
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::timeout,
                  fmt::format("TLS with rank {} was not done before the deadline",
                              joining.front()->peer()));
    }
    std::vector<pollfd> polled;
    for (const TlsStream* stream : joining)
      polled.push_back({stream->descriptor(), stream->events(), 0});
    poll(polled.data(), polled.size(), milliseconds_until(deadline));
  }
}

}  // namespace gradwire
