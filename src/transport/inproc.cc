#include "transport/inproc.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <system_error>

#include "transport/memory_transport.h"

namespace gradwire {
namespace {

/// Untouched pages cost nothing.
class PrivateMemory final : public OutboxMemory {
 public:
  explicit PrivateMemory(std::size_t size) : size_(size) {
    memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  ~PrivateMemory() override { munmap(memory_, size_); }
  std::span<std::byte> bytes() const noexcept override {
    return {static_cast<std::byte*>(memory_), size_};
  }

 private:
  void* memory_;
  std::size_t size_;
};

}  // namespace

std::vector<std::unique_ptr<Router>> make_inproc(std::uint32_t ranks, std::size_t message_bytes) {
  std::vector<std::shared_ptr<OutboxMemory>> outboxes;
  std::vector<std::shared_ptr<FileDescriptor>> events;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    outboxes.push_back(std::make_shared<PrivateMemory>(Outbox::size(ranks, message_bytes)));
    Outbox(outboxes.back()->bytes(), ranks).create();
    events.push_back(std::make_shared<FileDescriptor>(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  }
  std::vector<std::unique_ptr<Router>> routers;
  for (std::uint32_t me = 0; me < ranks; ++me) {
    std::vector<MemoryPeer> peers(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != me) peers[rank] = {outboxes[rank], events[rank], {}};
    }
    routers.push_back(std::make_unique<Router>(
        std::make_unique<MemoryTransport>(me, outboxes[me], events[me], std::move(peers)), ranks));
  }
  return routers;
}

}  // namespace gradwire
