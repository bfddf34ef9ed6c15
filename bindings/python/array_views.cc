#include "array_views.h"

#include <cstdint>
#include <optional>
#include <string>

namespace gradwire::python {
namespace {

using DtypeCode = nb::dlpack::dtype_code;

[[noreturn]] void raise_type_error(const std::string& message) {
  throw nb::type_error(message.c_str());
}

[[noreturn]] void raise_value_error(const std::string& message) {
  throw nb::value_error(message.c_str());
}

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

/// The type's name as a user would write it, such as "list" or "torch.Tensor".
std::string name_of_type(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = text_of(type.attr("__module__"));
  const std::string name = text_of(type.attr("__qualname__"));
  return module == "builtins" ? name : module + "." + name;
}

/// An array that shows no numbers we could read: not an array at all, or of a dtype (object,
/// swapped bytes), a layout (sparse) or a state (part of an autograd graph) that its library does
/// not export.
[[noreturn]] void refuse_unreadable(nb::handle source, const char* name) {
  std::string what = std::string(name) + " (" + name_of_type(source);
  if (nb::hasattr(source, "dtype")) {
    what += " of dtype " + text_of(source.attr("dtype"));
  }
  raise_type_error(what +
                   ") does not show its numbers; pass a NumPy array of float32 or float16, or a "
                   "dense, detached CPU tensor of float32, float16 or bfloat16");
}

std::string dtype_name(nb::dlpack::dtype dtype) {
  const std::string bits = std::to_string(dtype.bits);
  switch (static_cast<DtypeCode>(dtype.code)) {
    case DtypeCode::Int:
      return "int" + bits;
    case DtypeCode::UInt:
      return "uint" + bits;
    case DtypeCode::Float:
      return "float" + bits;
    case DtypeCode::Bfloat:
      return "bfloat" + bits;
    case DtypeCode::Complex:
      return "complex" + bits;
    case DtypeCode::Bool:
      return "bool";
    default:
      return "with DLPack's code " + std::to_string(dtype.code);
  }
}

std::optional<Dtype> dtype_of(nb::dlpack::dtype dtype) {
  const auto is = [&](DtypeCode code, std::uint8_t bits) {
    return dtype == nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  if (is(DtypeCode::Float, 32)) return Dtype::f32;
  if (is(DtypeCode::Float, 16)) return Dtype::f16;
  if (is(DtypeCode::Bfloat, 16)) return Dtype::bf16;
  return std::nullopt;
}

/// Also the page-locked memory that GPU drivers give to CPU tensors.
bool in_cpu_memory(int device_type) {
  return device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value ||
         device_type == nb::device::rocm_host::value;
}

template <typename Array>
bool c_contiguous(const Array& array) {
  if (array.size() <= 1) return true;
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) == 1) continue;
    if (array.stride(i) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

/// The dtype of an array that gradwire can use in place; raises for any other.
template <typename Array>
Dtype usable_dtype(const Array& array, const std::string& name) {
  const std::optional<Dtype> dtype = dtype_of(array.dtype());
  if (!dtype) {
    raise_type_error(name + " has dtype " + dtype_name(array.dtype()) +
                     "; convert it to float32, float16 or bfloat16");
  }
  if (!in_cpu_memory(array.device_type())) {
    raise_value_error(name + " is not in the CPU's memory; copy it there first, for example with " +
                      name + ".cpu()");
  }
  if (!c_contiguous(array)) {
    raise_value_error(name +
                      " is not C-contiguous; pass a contiguous array, for example made with "
                      "numpy.ascontiguousarray");
  }
  if (array.size() != 0 && reinterpret_cast<std::uintptr_t>(array.data()) % size_of(*dtype) != 0) {
    raise_value_error(name + " is not aligned to the size of its elements; pass a copy of it");
  }
  return *dtype;
}

bool holds(nb::handle object, const char* attribute) {
  const nb::object value = nb::getattr(object, attribute, nb::none());
  return nb::cast<bool>(PyCallable_Check(value.ptr()) != 0 ? value() : nb::bool_(value));
}

/// PyTorch knows things about a tensor that its memory does not show, and that an export drops.
void refuse_hidden_state(nb::handle source, const std::string& name) {
  if (holds(source, "requires_grad")) {
    raise_value_error(name + " is part of an autograd graph; pass " + name + ".detach()");
  }
  if (holds(source, "is_neg")) {
    raise_value_error(name + " is negated when PyTorch reads it; pass " + name + ".resolve_neg()");
  }
}

/// JAX and TensorFlow share the memory of immutable arrays without marking it read-only.
bool immutable(nb::handle source) {
  const std::string type = name_of_type(source);
  return type.starts_with("jax") || type.starts_with("tensorflow");
}

}  // namespace

InputArray::InputArray(nb::handle source, const char* name) {
  refuse_hidden_state(source, name);
  if (!nb::try_cast(source, array_, false)) refuse_unreadable(source, name);
  const Dtype dtype = usable_dtype(array_, name);
  view_ = {array_.data(), array_.size(), dtype};
}

OutputArray::OutputArray(nb::handle source, const char* name) {
  refuse_hidden_state(source, name);
  if (immutable(source) || !nb::try_cast(source, array_, false)) {
    const InputArray readable(source, name);  // raises for any other fault
    raise_value_error(std::string(name) + " is read-only; pass an array that may be written");
  }
  const Dtype dtype = usable_dtype(array_, name);
  view_ = {array_.data(), array_.size(), dtype};
}

GivenBytes::GivenBytes(nb::handle source, const char* name, const char* origin) {
  if (PyObject_GetBuffer(source.ptr(), &buffer_, PyBUF_SIMPLE) == 0) return;
  PyErr_Clear();
  raise_type_error(std::string(name) + " (" + name_of_type(source) +
                   ") is not contiguous bytes; pass what " + origin +
                   " returned, or a bytes, bytearray, memoryview or mmap");
}

}  // namespace gradwire::python
