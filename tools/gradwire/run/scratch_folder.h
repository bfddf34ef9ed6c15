// A directory for the time of one command.
#pragma once

#include <string>

namespace gradwire::cli {

/// Private to the user, and gone with the object.
class ScratchFolder {
 public:
  /// Throws Error(io) when the system's temporary directory takes none.
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gradwire::cli
