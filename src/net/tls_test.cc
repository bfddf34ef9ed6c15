#include "net/tls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/test_authority.h"

namespace gradwire::test {
namespace {

constexpr std::uint64_t kFewRecords = 3;  // per key, so that keys change often

/// Two connected sockets, as `connect_mesh` leaves them.
struct Pair {
  PeerConnection ends[2];
  Pair() {
    int sockets[2];
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets);
    for (int i = 0; i < 2; ++i) {
      ends[i].socket = FileDescriptor(sockets[i]);
      ends[i].key.fill(std::byte{7});
    }
  }
};

/// What became of one end.
struct End {
  std::unique_ptr<Stream> stream;
  std::string error;
};

End join(const Tls& tls, std::uint32_t me, PeerConnection connection, int milliseconds = 20'000) {
  try {
    std::vector<PeerConnection> all;
    all.push_back(std::move(connection));
    auto streams = encrypt(tls, me, {1 - me}, std::move(all),
                           Clock::now() + std::chrono::milliseconds(milliseconds), kFewRecords);
    return {std::move(streams[0]), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

/// Both ends at once; `pair`'s sockets may belong to somebody in between.
std::array<End, 2> join_both(const Tls& zero, const Tls& one, Pair pair) {
  std::array<End, 2> ends;
  std::thread other([&] { ends[1] = join(one, 1, std::move(pair.ends[1])); });
  ends[0] = join(zero, 0, std::move(pair.ends[0]));
  other.join();
  return ends;
}

void wait_for(const Stream& stream, short events) {
  pollfd polled{stream.descriptor(), events, 0};
  poll(&polled, 1, 1000);
}

std::byte pattern(std::size_t at) { return static_cast<std::byte>(at * 7 + at / 251); }

/// Sends a header and a body, flushed at the end; false when the stream closed.
bool send(Stream& stream, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const bool header = done < 24;
    const auto rest = header ? bytes.subspan(done, 24 - done) : bytes.subspan(done);
    const std::ptrdiff_t n = stream.write(rest, header);
    if (n == Stream::kClosed) return false;
    if (n == Stream::kWouldBlock) wait_for(stream, POLLOUT);
    done += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  for (const Deadline deadline = Clock::now() + std::chrono::seconds(5); Clock::now() < deadline;) {
    if (stream.flush()) return true;
    if (stream.write({}, false) == Stream::kClosed) return false;
    wait_for(stream, POLLOUT);
  }
  return false;
}

/// Sleeps only when nothing is buffered, as the transport does.
bool receive(Stream& stream, std::span<std::byte> bytes) {
  std::size_t have = 0;
  while (have < bytes.size()) {
    const std::ptrdiff_t n = stream.read(bytes.subspan(have));
    if (n == Stream::kClosed) return false;
    if (n == Stream::kWouldBlock) {
      EXPECT_FALSE(stream.has_buffered());
      wait_for(stream, POLLIN);
    }
    have += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  return true;
}

TEST(Tls, megabytes_cross_whole_both_ways_while_keys_change) {
  auto ends = join_both(tls_by_key(), tls_by_key(), {});
  ASSERT_TRUE(ends[0].stream && ends[1].stream) << ends[0].error << ends[1].error;
  std::vector<std::byte> sent(5'000'003);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = pattern(i);
  std::vector<std::byte> received[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    received[i].resize(sent.size());
    threads.emplace_back([&, i] {
      // One stream belongs to one thread; so each sends first one way, then the other.
      Stream& stream = *ends[static_cast<std::size_t>(i)].stream;
      const bool first = i == 0;
      EXPECT_TRUE(first ? send(stream, sent) : receive(stream, received[i]));
      EXPECT_TRUE(first ? receive(stream, received[i]) : send(stream, sent));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received[0], sent);
  EXPECT_EQ(received[1], sent);
}

TEST(Tls, what_was_taken_from_the_socket_counts_as_buffered) {
  auto ends = join_both(tls_by_key(), tls_by_key(), {});
  ASSERT_TRUE(ends[0].stream && ends[1].stream);
  const std::vector<std::byte> three(3 * 1000, std::byte{1});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*ends[0].stream, std::span(three).first(1000)));
  std::vector<std::byte> some(10);
  wait_for(*ends[1].stream, POLLIN);
  ASSERT_EQ(ends[1].stream->read(some), 10);
  // All records are inside by now: the socket is empty and would never wake anybody.
  pollfd polled{ends[1].stream->descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0);
  EXPECT_TRUE(ends[1].stream->has_buffered());
  std::vector<std::byte> rest(3000 - 10);
  EXPECT_TRUE(receive(*ends[1].stream, rest));
  EXPECT_EQ(ends[1].stream->read(some), Stream::kWouldBlock);
  EXPECT_FALSE(ends[1].stream->has_buffered());
}

TEST(Tls, a_closed_peer_is_closed_and_no_signal) {
  auto ends = join_both(tls_by_key(), tls_by_key(), {});
  ASSERT_TRUE(ends[0].stream && ends[1].stream);
  ends[1].stream.reset();
  const std::vector<std::byte> much(1'000'000);
  EXPECT_FALSE(send(*ends[0].stream, much));
  std::byte byte[1];
  EXPECT_EQ(ends[0].stream->read(byte), Stream::kClosed);
}

TEST(Tls, another_key_is_refused_on_both_ends) {
  Pair pair;
  pair.ends[1].key.fill(std::byte{8});
  const auto ends = join_both(tls_by_key(), tls_by_key(), std::move(pair));
  EXPECT_NE(ends[0].error.find("rank 1"), std::string::npos) << ends[0].error;
  EXPECT_NE(ends[1].error.find("rank 0"), std::string::npos) << ends[1].error;
}

TEST(Tls, silence_is_a_timeout_that_names_the_peer) {
  Pair pair;
  const End end = join(tls_by_key(), 0, std::move(pair.ends[0]), 100);
  EXPECT_NE(end.error.find("TLS with rank 1 was not done"), std::string::npos) << end.error;
}

TEST(Tls, certificates_of_one_authority_join) {
  const TestAuthority authority;
  const auto ends = join_both(tls_by_certificates(authority.issue("zero")),
                              tls_by_certificates(authority.issue("one")), {});
  ASSERT_TRUE(ends[0].stream && ends[1].stream) << ends[0].error << ends[1].error;
  std::vector<std::byte> sent(100'000);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = pattern(i);
  std::vector<std::byte> received(sent.size());
  std::thread sender([&] { EXPECT_TRUE(send(*ends[1].stream, sent)); });
  EXPECT_TRUE(receive(*ends[0].stream, received));
  sender.join();
  EXPECT_EQ(received, sent);
}

TEST(Tls, a_certificate_of_another_authority_is_refused_on_both_ends) {
  const TestAuthority ours;
  const TestAuthority theirs;
  for (const bool caller_is_stranger : {false, true}) {
    const Tls stranger = tls_by_certificates(theirs.issue("stranger"));
    const Tls member = tls_by_certificates(ours.issue("member"));
    const auto ends = join_both(caller_is_stranger ? member : stranger,
                                caller_is_stranger ? stranger : member, {});
    EXPECT_FALSE(ends[0].stream || ends[1].stream);
    EXPECT_NE(ends[0].error.find("TLS with rank 1 failed"), std::string::npos) << ends[0].error;
    EXPECT_NE(ends[1].error.find("TLS with rank 0 failed"), std::string::npos) << ends[1].error;
  }
}

TEST(Tls, no_certificate_against_one_is_refused_on_both_ends) {
  const TestAuthority authority;
  for (const bool caller_has_key : {false, true}) {
    const Tls by_certificate = tls_by_certificates(authority.issue("one"));
    const auto ends = join_both(caller_has_key ? by_certificate : tls_by_key(),
                                caller_has_key ? tls_by_key() : by_certificate, {});
    EXPECT_FALSE(ends[0].stream || ends[1].stream);
    EXPECT_FALSE(ends[0].error.empty() || ends[1].error.empty());
  }
}

TEST(Tls, who_has_a_certificate_but_not_the_key_of_the_connection_stands_in_between) {
  const TestAuthority authority;
  Pair pair;
  pair.ends[1].key.fill(std::byte{8});  // as if proofs had been passed on, and TLS had not
  const auto ends = join_both(tls_by_certificates(authority.issue("zero")),
                              tls_by_certificates(authority.issue("one")), std::move(pair));
  EXPECT_NE(ends[0].error.find("in between"), std::string::npos) << ends[0].error;
  EXPECT_NE(ends[1].error.find("in between"), std::string::npos) << ends[1].error;
}

/// Passes bytes on from one socket to another, the `flipped`-th changed.
void pass_on(int from, int to, std::ptrdiff_t flipped) {
  std::byte bytes[4096];
  for (std::ptrdiff_t at = 0;;) {
    pollfd polled{from, POLLIN, 0};
    if (poll(&polled, 1, 20'000) <= 0) return;
    const ssize_t n = recv(from, bytes, sizeof(bytes), 0);
    if (n <= 0) return;
    if (flipped >= at && flipped < at + n) bytes[flipped - at] ^= std::byte{1};
    at += n;
    for (ssize_t sent = 0; sent < n;) {
      const ssize_t more =
          ::send(to, bytes + sent, static_cast<std::size_t>(n - sent), MSG_NOSIGNAL);
      if (more < 0 && errno != EAGAIN) return;
      sent += std::max<ssize_t>(more, 0);
      pollfd writable{to, POLLOUT, 0};
      poll(&writable, 1, 1000);
    }
  }
}

TEST(Tls, a_byte_changed_on_the_way_ends_the_stream) {
  Pair near;
  Pair far;
  const std::size_t bytes = 300'000;
  std::vector<std::jthread> wires;
  const int in = near.ends[1].socket.get();
  const int out = far.ends[0].socket.get();
  wires.emplace_back(pass_on, in, out, std::ptrdiff_t{100'000});
  wires.emplace_back(pass_on, out, in, std::ptrdiff_t{-1});
  {
    Pair ends_pair;
    ends_pair.ends[0] = {std::move(near.ends[0].socket), near.ends[0].key};
    ends_pair.ends[1] = {std::move(far.ends[1].socket), far.ends[1].key};
    auto ends = join_both(tls_by_key(), tls_by_key(), std::move(ends_pair));
    ASSERT_TRUE(ends[0].stream && ends[1].stream) << ends[0].error << ends[1].error;
    const std::vector<std::byte> sent(bytes, std::byte{42});
    std::vector<std::byte> received(bytes);
    std::thread sender([&] { send(*ends[0].stream, sent); });
    EXPECT_FALSE(receive(*ends[1].stream, received));
    ends[1].stream.reset();
    shutdown(in, SHUT_RDWR);
    shutdown(out, SHUT_RDWR);
    sender.join();
  }
}

// ---------------------------------------------------------------------------------------------
// What users get wrong

std::string complaint(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "nothing";
}

TEST(TlsFiles, what_cannot_be_used_is_named) {
  const TestAuthority authority;
  const TestAuthority other;
  const CertificateFiles good = authority.issue("good");
  const CertificateFiles second = authority.issue("second");
  const CertificateFiles foreign = other.issue("foreign");
  const CertificateFiles expired = authority.issue("expired", -1);
  const std::string text = authority.path("text");
  std::ofstream(text) << "no PEM\n";
  const std::string none = authority.path("none");
  const struct {
    CertificateFiles files;
    std::string expected;
  } cases[] = {
      {{none, good.private_key, good.authority}, "cannot read the certificate '" + none},
      {{good.certificate, none, good.authority}, "cannot read the private key '" + none},
      {{good.certificate, good.private_key, none}, "cannot read the certificate of the authority"},
      {{text, good.private_key, good.authority}, "is no certificate in PEM"},
      {{good.certificate, text, good.authority}, "is no private key in PEM"},
      {{good.certificate, good.private_key, text}, "is no certificate of an authority"},
      {{good.certificate, second.private_key, good.authority}, "does not belong"},
      {{foreign.certificate, foreign.private_key, good.authority}, "does not vouch"},
      {expired, "certificate has expired"},
  };
  for (const auto& each : cases) {
    const std::string found = complaint([&] { tls_by_certificates(each.files); });
    EXPECT_NE(found.find(each.expected), std::string::npos) << each.expected << "\n" << found;
  }
}

}  // namespace
}  // namespace gradwire::test
