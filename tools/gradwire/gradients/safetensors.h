// Files of named tensors, as the `safetensors` library writes them:
//
//   8 bytes         length of the header, little-endian
//   header          JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   data            the tensors, back to back; offsets count from here
//
// A key "__metadata__" in the header is allowed and passed over.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "gradients/mapped_file.h"
#include "gradwire/tensor.h"

namespace gradwire::cli {

struct NamedTensor {
  std::string name;
  ConstTensorView values;  ///< points into the file's bytes
  std::size_t dimensions = 1;
};

/// The tensors in the order of their data. The bytes may come from anybody: everything is checked,
/// and Error(io) says what is wrong, in which tensor, and what would be right. Tensors are F32, F16
/// or BF16.
std::vector<NamedTensor> parse_safetensors(std::span<const std::byte> file);
/// The same; errors name the file, too.
std::vector<NamedTensor> read_safetensors(const std::string& path, const MappedFile& file);

}  // namespace gradwire::cli
