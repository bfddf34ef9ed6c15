// Python's arrays and buffers as the views that gradwire takes, without copies.
//
// Each object here keeps the Python object it views alive. It is made and destroyed with the GIL
// held; its view may be used without. What cannot be viewed raises TypeError or ValueError with a
// sentence that says what to pass instead; `name` is what that sentence calls the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <span>

#include "gradwire/tensor.h"

namespace gradwire::python {

namespace nb = nanobind;

/// Numbers to read: a NumPy array, or anything else with DLPack or the buffer protocol, that is
/// C-contiguous, of dtype float32, float16 or bfloat16 and in the CPU's memory. Any shape.
class InputArray {
 public:
  InputArray(nb::handle source, const char* name);
  ConstTensorView view() const noexcept { return view_; }

 private:
  nb::ndarray<nb::ro> array_;
  ConstTensorView view_;
};

/// Numbers to write: the same, but writable.
class OutputArray {
 public:
  OutputArray(nb::handle source, const char* name);
  TensorView view() const noexcept { return view_; }

 private:
  nb::ndarray<> array_;
  TensorView view_;
};

/// What a function of ours has returned: bytes, bytearray, memoryview, mmap or anything else with
/// the buffer protocol.
class GivenBytes {
 public:
  /// Of the argument `name`; `origin` is the function whose result it should be.
  GivenBytes(nb::handle source, const char* name, const char* origin);
  ~GivenBytes() { PyBuffer_Release(&buffer_); }
  GivenBytes(const GivenBytes&) = delete;
  GivenBytes& operator=(const GivenBytes&) = delete;

  std::span<const std::byte> span() const noexcept {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
};

struct FrameBytes : GivenBytes {
  explicit FrameBytes(nb::handle source) : GivenBytes(source, "frame", "encode") {}
};

}  // namespace gradwire::python
