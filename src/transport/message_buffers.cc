#include "transport/message_buffers.h"

namespace gradwire {

std::uint64_t MessageBuffers::acquire(std::size_t bytes) {
  if (free_.empty()) {
    buffers_.emplace_back();
    free_.reserve(buffers_.size());
    free_.push_back(buffers_.size() - 1);
  }
  const std::uint64_t number = free_.back();
  if (buffers_[number].size() < bytes) buffers_[number].resize(bytes);
  free_.pop_back();
  return number;
}

}  // namespace gradwire
