#include <sys/socket.h>

#include <cerrno>

#include "net/stream.h"

namespace gradwire {
namespace {

class PlainStream final : public Stream {
 public:
  explicit PlainStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  std::ptrdiff_t read(std::span<std::byte> to) noexcept override {
    const ssize_t n = recv(socket_.get(), to.data(), to.size(), 0);
    if (n > 0) return n;
    return n < 0 && would_block() ? kWouldBlock : kClosed;
  }
  std::ptrdiff_t write(std::span<const std::byte> from, bool more) noexcept override {
    const int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    const ssize_t n = ::send(socket_.get(), from.data(), from.size(), flags);
    if (n >= 0) return n;
    return would_block() ? kWouldBlock : kClosed;
  }
  bool flush() noexcept override { return true; }
  int descriptor() const noexcept override { return socket_.get(); }
  bool has_buffered() const noexcept override { return false; }

 private:
  static bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }

  FileDescriptor socket_;
};

}  // namespace

std::unique_ptr<Stream> plain_stream(FileDescriptor socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace gradwire
