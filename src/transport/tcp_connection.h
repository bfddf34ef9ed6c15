// One peer of the `tcp` transport: messages in and out of a stream.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "net/stream.h"
#include "transport/message_buffers.h"
#include "transport/transport.h"

namespace gradwire {

/// What stands before every message on the wire.
struct WireHeader {
  enum Kind : std::uint32_t {
    message = 0x4d574731,  // "1GWM"
    abort = 0x41574731,    // the tag is the culprit's rank, the bytes are the reason
  };
  std::uint32_t kind = message;
  std::uint32_t check = 0;  ///< low 32 bits of XXH3 of the rest, so that a flipped length shows
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(WireHeader) == 24);

class TcpConnection {
 public:
  TcpConnection(std::unique_ptr<Stream> stream, std::uint32_t peer, std::size_t max_message_bytes,
                MessageBuffers& buffers);

  void enqueue(WireHeader::Kind kind, Tag tag, std::span<const std::byte> bytes,
               std::uint64_t ticket);
  /// Both return whether anything moved. A fault is left in `failure`.
  bool write(Receiver& receiver) noexcept;
  bool read(Receiver& receiver) noexcept;
  /// Counts what is left to send as sent: nobody reads it any more.
  void drop_outgoing(Receiver& receiver) noexcept;

  int descriptor() const noexcept { return stream_->descriptor(); }
  bool wants_to_write() const noexcept { return queued() > 0; }
  std::size_t queued() const noexcept { return outgoing_.size(); }
  bool paused() const noexcept { return paused_; }
  bool has_buffered() const noexcept { return stream_->has_buffered(); }
  const Failure* failure() const noexcept { return failed_ ? &failure_ : nullptr; }

 private:
  struct Outgoing {
    WireHeader header;
    std::span<const std::byte> bytes;
    std::uint64_t ticket;
    std::size_t done = 0;  // of header and bytes together
    std::string text;      // owns the bytes of an abort
  };

  bool read_header(Receiver& receiver) noexcept;
  bool read_body(Receiver& receiver) noexcept;
  bool begin_body(Receiver& receiver) noexcept;
  void finish_body(Receiver& receiver) noexcept;
  void fail(Fault fault, std::uint32_t culprit, std::string reason) noexcept;

  std::unique_ptr<Stream> stream_;
  std::uint32_t peer_;
  std::size_t max_message_bytes_;
  MessageBuffers& buffers_;
  std::deque<Outgoing> outgoing_;
  std::byte header_bytes_[sizeof(WireHeader)];
  std::size_t header_have_ = 0;
  WireHeader header_;
  std::uint64_t buffer_ = 0;
  std::size_t body_have_ = 0;
  bool in_body_ = false;
  bool paused_ = false;  // a message waits that the receiver does not want yet
  bool failed_ = false;
  Failure failure_;
};

}  // namespace gradwire
