// Memory for messages, kept for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradwire {

class MessageBuffers {
 public:
  /// Returns a number for `at`; throws std::bad_alloc.
  std::uint64_t acquire(std::size_t bytes);
  std::span<std::byte> at(std::uint64_t number) noexcept { return buffers_[number]; }
  void release(std::uint64_t number) noexcept { free_.push_back(number); }

 private:
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::uint64_t> free_;
};

}  // namespace gradwire
