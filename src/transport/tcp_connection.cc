#include "transport/tcp_connection.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/checksum.h"

namespace gradwire {
namespace {

constexpr std::size_t kReadBudget = std::size_t{1} << 20;  // bytes before others get their turn

std::uint32_t check_of(WireHeader header) noexcept {
  header.check = 0;
  return static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(&header, 1))));
}

}  // namespace

TcpConnection::TcpConnection(std::unique_ptr<Stream> stream, std::uint32_t peer,
                             std::size_t max_message_bytes, MessageBuffers& buffers)
    : stream_(std::move(stream)),
      peer_(peer),
      max_message_bytes_(max_message_bytes),
      buffers_(buffers) {}

void TcpConnection::enqueue(WireHeader::Kind kind, Tag tag, std::span<const std::byte> bytes,
                            std::uint64_t ticket) {
  Outgoing out{{kind, 0, tag, bytes.size()}, bytes, ticket, 0, {}};
  out.header.check = check_of(out.header);
  if (kind == WireHeader::message) {
    outgoing_.push_back(std::move(out));
    return;
  }
  // An abort overtakes all messages but one that is half sent, and does not depend on its caller.
  out.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool half_sent = !outgoing_.empty() && outgoing_.front().done > 0;
  const auto at = outgoing_.insert(outgoing_.begin() + (half_sent ? 1 : 0), std::move(out));
  at->bytes = std::as_bytes(std::span(at->text));
}

bool TcpConnection::write(Receiver& receiver) noexcept {
  bool did = false;
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    const bool in_header = out.done < sizeof(WireHeader);
    const auto rest = in_header ? std::as_bytes(std::span(&out.header, 1)).subspan(out.done)
                                : out.bytes.subspan(out.done - sizeof(WireHeader));
    if (!rest.empty()) {
      const bool more = in_header && !out.bytes.empty();
      const std::ptrdiff_t n = stream_->write(rest, more);
      if (n == Stream::kWouldBlock) break;
      if (n == Stream::kClosed) {  // reading says why: it may have sent its reason
        drop_outgoing(receiver);
        return true;
      }
      out.done += static_cast<std::size_t>(n);
      did = true;
    }
    if (out.done < sizeof(WireHeader) + out.bytes.size()) continue;
    if (!stream_->flush()) break;  // a message is sent when the system has all of it
    const bool message = out.header.kind == WireHeader::message;
    const std::uint64_t ticket = out.ticket;
    outgoing_.pop_front();
    if (message) receiver.sent(ticket);
  }
  return did;
}

void TcpConnection::drop_outgoing(Receiver& receiver) noexcept {
  for (const Outgoing& out : outgoing_) {
    if (out.header.kind == WireHeader::message) receiver.sent(out.ticket);
  }
  outgoing_.clear();
}

bool TcpConnection::read(Receiver& receiver) noexcept {
  bool did = false;
  if (paused_) {
    if (!receiver.wants(peer_, header_.tag)) return false;
    paused_ = false;
    did = begin_body(receiver);
  }
  const std::size_t rounds = 64;
  for (std::size_t i = 0; i < rounds && !failed_ && !paused_; ++i) {
    if (!(in_body_ ? read_body(receiver) : read_header(receiver))) break;
    did = true;
  }
  return did;
}

bool TcpConnection::read_header(Receiver& receiver) noexcept {
  const std::span<std::byte> rest = std::span(header_bytes_).subspan(header_have_);
  const std::ptrdiff_t n = stream_->read(rest);
  if (n == Stream::kWouldBlock) return false;
  if (n == Stream::kClosed) {
    fail(Fault::lost, peer_, "its process ended or the connection broke");
    return true;
  }
  header_have_ += static_cast<std::size_t>(n);
  if (header_have_ < sizeof(WireHeader)) return true;
  header_have_ = 0;
  header_ = load<WireHeader>(header_bytes_);
  const bool message = header_.kind == WireHeader::message;
  const bool known = message || header_.kind == WireHeader::abort;
  const std::size_t limit = message ? max_message_bytes_ : kMaxReason;
  if (!known || header_.check != check_of(header_) || header_.bytes > limit) {
    fail(Fault::garbage, peer_, "bytes that are no message");
    return true;
  }
  if (message && !receiver.wants(peer_, header_.tag)) {
    paused_ = true;
    return true;
  }
  return begin_body(receiver);
}

bool TcpConnection::begin_body(Receiver& receiver) noexcept {
  try {
    buffer_ = buffers_.acquire(header_.bytes);
  } catch (const std::bad_alloc&) {
    fail(Fault::garbage, peer_, "a message that memory does not suffice for");
    return true;
  }
  in_body_ = true;
  body_have_ = 0;
  if (header_.bytes == 0) finish_body(receiver);
  return true;
}

bool TcpConnection::read_body(Receiver& receiver) noexcept {
  const std::size_t want = std::min<std::size_t>(header_.bytes - body_have_, kReadBudget);
  const std::ptrdiff_t n = stream_->read(buffers_.at(buffer_).subspan(body_have_, want));
  if (n == Stream::kWouldBlock) return false;
  if (n == Stream::kClosed) {
    fail(Fault::lost, peer_, "its process ended or the connection broke");
    return true;
  }
  body_have_ += static_cast<std::size_t>(n);
  if (body_have_ == header_.bytes) finish_body(receiver);
  return true;
}

void TcpConnection::finish_body(Receiver& receiver) noexcept {
  in_body_ = false;
  const std::span<std::byte> bytes = buffers_.at(buffer_).first(header_.bytes);
  if (header_.kind == WireHeader::message) {
    receiver.arrived({peer_, header_.tag, bytes, buffer_});
    return;
  }
  std::string reason(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  buffers_.release(buffer_);
  fail(Fault::refused, static_cast<std::uint32_t>(header_.tag), std::move(reason));
}

void TcpConnection::fail(Fault fault, std::uint32_t culprit, std::string reason) noexcept {
  failed_ = true;
  failure_ = {fault, peer_, culprit, std::move(reason)};
}

}  // namespace gradwire
