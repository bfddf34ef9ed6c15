// The memory of a residual: floats that are zeros until they are written, and have no memory until
// then. A residual is made on the thread that hands a gradient over, which must not wait until a
// page of zeros is laid out for each page of the model: the workers that take the gradient up do.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace gradwire {

/// Memory of zeros from the system, in which nothing is written to make a zero. A vector with it
/// must not grow again after it has shrunk.
struct ZeroedMemory {
  using value_type = float;
  template <class>
  struct rebind {  // NOLINT(readability-identifier-naming): the name that std::vector knows
    using other = ZeroedMemory;  // of floats only
  };

  float* allocate(std::size_t count) {
    void* const memory = std::calloc(count, sizeof(float));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<float*>(memory);
  }
  void deallocate(float* memory, std::size_t) noexcept { std::free(memory); }
  void construct(float*) noexcept {}
  void construct(float* at, float number) noexcept { *at = number; }

  friend bool operator==(ZeroedMemory, ZeroedMemory) noexcept { return true; }
};

using KeptNumbers = std::vector<float, ZeroedMemory>;

}  // namespace gradwire
