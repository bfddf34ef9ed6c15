// A folder of its own for a test.
#pragma once

#include <stdlib.h>

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

}  // namespace gradwire::trace
