// Reading and writing bytes front to back, little-endian.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace gradwire {

/// Takes values off the front of bytes that may come from anywhere: what is not there is not read,
/// and the call says false. Does not own the bytes.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] bool read(T& value) noexcept {
    if (rest_.size() < sizeof(T)) return false;
    value = load<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }

  /// As many values as there is room for in `values`, one behind the other.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] bool read_all(std::span<T> values) noexcept {
    std::span<const std::byte> from;
    if (!take(values.size_bytes(), from)) return false;
    if (!from.empty()) std::memcpy(values.data(), from.data(), from.size());
    return true;
  }

  /// `part` becomes the next `bytes` bytes, where they lie.
  [[nodiscard]] bool take(std::size_t bytes, std::span<const std::byte>& part) noexcept {
    if (rest_.size() < bytes) return false;
    part = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }

  std::span<const std::byte> rest() const noexcept { return rest_; }
  bool empty() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

/// Appends values to bytes that grow.
class ByteWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void write(const T& value) { write_all(std::span<const T>(&value, 1)); }

  /// The values one behind the other, without their count.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void write_all(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::vector<std::byte> finish() && noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace gradwire
