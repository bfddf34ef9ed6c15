// A file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace gradwire::cli {

class MappedFile {
 public:
  /// Throws Error(io) that names the file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace gradwire::cli
