// A folder of its own for a test, and a disk on which writing a trace takes as long as it wants.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace gradwire::trace {

struct TestFolder {
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradwire-trace-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path;
};

/// Whoever writes this trace waits until `write_all`: a pipe stands where the file is to be made.
class SlowDisk {
 public:
  explicit SlowDisk(const std::string& trace) : pipe_(trace + ".part") {
    mkfifo(pipe_.c_str(), 0600);
  }

  /// After that the disk is as fast as any. Somebody has to be writing.
  void write_all() const {
    const int reader = open(pipe_.c_str(), O_RDONLY | O_CLOEXEC);
    char ignored[4096];
    while (read(reader, ignored, sizeof ignored) > 0) {
    }
    close(reader);
  }

 private:
  const std::string pipe_;
};

}  // namespace gradwire::trace
