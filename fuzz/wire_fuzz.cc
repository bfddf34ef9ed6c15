// What arrives on a connection of the `tcp` transport, as it comes and with headers made right, so
// that what lies behind their checks is reached.
#include <algorithm>

#include "base/bytes.h"
#include "base/checksum.h"
#include "fuzz_input.h"
#include "transport/tcp_connection.h"

namespace gradwire::fuzz {
namespace {

constexpr std::size_t kMaxMessage = 4096;

/// Gives the bytes in pieces of some length, then closes.
class Tape final : public Stream {
 public:
  Tape(std::span<const std::byte> bytes, std::size_t piece) : rest_(bytes), piece_(piece) {}
  std::ptrdiff_t read(std::span<std::byte> to) noexcept override {
    require(!to.empty(), "a read without room");
    if (rest_.empty()) return kClosed;
    blocked_ = !blocked_;
    if (blocked_) return kWouldBlock;
    const std::size_t n = std::min({to.size(), piece_, rest_.size()});
    std::memcpy(to.data(), rest_.data(), n);
    rest_ = rest_.subspan(n);
    return static_cast<std::ptrdiff_t>(n);
  }
  std::ptrdiff_t write(std::span<const std::byte> from, bool) noexcept override {
    return static_cast<std::ptrdiff_t>(from.size());
  }
  bool flush() noexcept override { return true; }
  int descriptor() const noexcept override { return -1; }
  bool has_buffered() const noexcept override { return false; }

 private:
  std::span<const std::byte> rest_;
  std::size_t piece_;
  bool blocked_ = false;
};

class Reader final : public Receiver {
 public:
  explicit Reader(MessageBuffers& buffers) : buffers_(buffers) {}
  bool wants(std::uint32_t, Tag tag) noexcept override {
    patience_ = !patience_;
    return patience_ || tag % 2 == 0;
  }
  void arrived(const Arrival& arrival) noexcept override {
    require(arrival.bytes.size() <= kMaxMessage, "a message beyond the limit");
    sum_ += checksum(arrival.bytes);
    buffers_.release(arrival.handle);
  }
  void sent(std::uint64_t) noexcept override {}
  void failed(const Failure&) noexcept override {}

 private:
  MessageBuffers& buffers_;
  bool patience_ = false;
  std::uint64_t sum_ = 0;
};

void read(std::span<const std::byte> bytes, std::size_t piece) {
  MessageBuffers buffers;
  Reader inbox(buffers);
  TcpConnection connection(std::make_unique<Tape>(bytes, piece), 1, kMaxMessage, buffers);
  for (std::size_t i = 0; i < 8 * bytes.size() + 64 && connection.failure() == nullptr; ++i) {
    connection.read(inbox);
  }
  require(connection.failure() != nullptr, "a closed connection goes unnoticed");
  require(connection.failure()->reason.size() <= kMaxMessage, "a reason beyond the limit");
}

/// Makes the headers of consecutive messages right.
void seal(std::span<std::byte> bytes) {
  while (bytes.size() >= sizeof(WireHeader)) {
    auto header = load<WireHeader>(bytes.data());
    header.kind = header.kind % 4 == 0 ? WireHeader::abort : WireHeader::message;
    header.bytes %= header.kind == WireHeader::abort ? 300 : 2 * kMaxMessage;
    header.check = 0;
    header.check = static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(&header, 1))));
    store(bytes.data(), header);
    bytes = bytes.subspan(std::min(bytes.size(), sizeof(WireHeader) + header.bytes));
  }
}

}  // namespace
}  // namespace gradwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire::fuzz;
  Input input(data, size);
  const std::size_t piece = 1 + input.below(64);
  const ExactBytes bytes(input.rest());
  read(bytes.span(), piece);
  seal(bytes.span());
  read(bytes.span(), piece);
  return 0;
}
