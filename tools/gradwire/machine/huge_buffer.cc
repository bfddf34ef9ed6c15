#include "machine/huge_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace gradwire::cli {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) {
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) throw std::bad_alloc();
  mapped_bytes_ = (bytes / kHugePageBytes + 2) * kHugePageBytes;
  mapping_ =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  const std::size_t skip = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  bytes_ = {static_cast<std::byte*>(mapping_) + skip, bytes};
  // Advice: where it is refused, measurements are slower for everybody alike.
  madvise(bytes_.data(), mapped_bytes_ - skip, MADV_HUGEPAGE);
  std::memset(bytes_.data(), 0, bytes_.size());
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      bytes_(std::exchange(other.bytes_, {})) {}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace gradwire::cli
