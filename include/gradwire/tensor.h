// Views of the numbers a caller owns. gradwire never owns, copies or keeps them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

/// Element types a gradient comes in. Numbers are part of the frame format.
enum class Dtype : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

inline constexpr int kDtypeCount = 3;

constexpr std::size_t size_of(Dtype dtype) noexcept { return dtype == Dtype::f32 ? 4 : 2; }

/// "f32", "f16" or "bf16". Static storage.
const char* name_of(Dtype dtype) noexcept;

/// Contiguous elements to read. `data` may be null only when `count` is 0, and is aligned to its
/// element.
struct ConstTensorView {
  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;

  ConstTensorView slice(std::size_t first, std::size_t length) const noexcept {
    return {static_cast<const std::byte*>(data) + first * size_of(dtype), length, dtype};
  }
};

/// Contiguous elements to write.
struct TensorView {
  void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;

  TensorView slice(std::size_t first, std::size_t length) const noexcept {
    return {static_cast<std::byte*>(data) + first * size_of(dtype), length, dtype};
  }
  operator ConstTensorView() const noexcept { return {data, count, dtype}; }
};

}  // namespace gradwire
