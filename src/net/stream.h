// A connected socket as a stream of bytes, plain or encrypted. Nothing here blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/file_descriptor.h"
#include "net/job.h"

namespace gradwire {

class Stream {
 public:
  /// What `read` and `write` return instead of a number of bytes.
  static constexpr std::ptrdiff_t kWouldBlock = -1;
  static constexpr std::ptrdiff_t kClosed = -2;  ///< by the peer, or broken

  virtual ~Stream() = default;
  virtual std::ptrdiff_t read(std::span<std::byte> to) noexcept = 0;
  /// `more`: further bytes follow at once, so that a few bytes do not get a packet of its own.
  virtual std::ptrdiff_t write(std::span<const std::byte> from, bool more) noexcept = 0;
  /// Gives the system what `write` took and still keeps; false while something is left.
  virtual bool flush() noexcept = 0;
  virtual int descriptor() const noexcept = 0;
  /// Bytes that have been taken from the socket and not yet been read.
  virtual bool has_buffered() const noexcept = 0;
};

/// Takes a connected, non-blocking socket.
std::unique_ptr<Stream> plain_stream(FileDescriptor socket);

}  // namespace gradwire
