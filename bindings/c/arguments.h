// What the functions of the C ABI share about their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/codec.h"
#include "gradwire/gradwire.h"
#include "gradwire/tensor.h"

struct gradwire_codec {
  gradwire::Codec codec;
  std::string spec;

  explicit gradwire_codec(const gradwire::Codec& value) : codec(value), spec(value.spec()) {}
};

namespace gradwire::c_api {

// The numbers of gradwire.h are those of tensor.h.
static_assert(static_cast<int>(Dtype::f32) == GRADWIRE_F32);
static_assert(static_cast<int>(Dtype::f16) == GRADWIRE_F16);
static_assert(static_cast<int>(Dtype::bf16) == GRADWIRE_BF16);

// Far beyond any memory, and far enough below 2^64 that no bound on a frame's length overflows.
inline constexpr std::size_t kMaxCount = std::size_t{1} << 56;

/// Why these are not numbers, or empty.
inline std::string_view fault_of_numbers(const void* data, std::size_t count, int dtype) noexcept {
  if (dtype < 0 || dtype >= kDtypeCount) {
    return "dtype is unknown; pass GRADWIRE_F32, GRADWIRE_F16 or GRADWIRE_BF16";
  }
  if (data == nullptr && count != 0) return "data is null but count is not 0";
  if (count > kMaxCount) return "count is larger than any memory";
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(static_cast<Dtype>(dtype)) != 0) {
    return "data is not aligned to the size of its numbers; copy it to aligned memory";
  }
  return {};
}

}  // namespace gradwire::c_api
