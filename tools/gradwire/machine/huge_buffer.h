// Memory for measurements: in huge pages where the system grants them, and touched, so that no
// sample pays for page faults or for walking page tables.
#pragma once

#include <cstddef>
#include <span>

namespace gradwire::cli {

class HugeBuffer {
 public:
  /// Throws std::bad_alloc. The bytes are zero.
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  std::span<float> floats() const noexcept {
    return {reinterpret_cast<float*>(bytes_.data()), bytes_.size() / sizeof(float)};
  }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::span<std::byte> bytes_;
};

}  // namespace gradwire::cli
