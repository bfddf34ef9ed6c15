#include "run/python_interpreter.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace gradwire::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> candidates() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::vector<fs::path> found;
  if (fs::exists(folder.parent_path() / "pyvenv.cfg")) found.push_back(folder / "python");
  if (const char* active = std::getenv("VIRTUAL_ENV"))
    found.push_back(fs::path(active) / "bin/python");
  for (fs::path above = folder; above.has_relative_path(); above = above.parent_path()) {
    found.push_back(above / ".venv/bin/python");
  }
  return found;
}

}  // namespace

std::string find_python(const std::string& asked) {
  if (!asked.empty()) return asked;
  for (const fs::path& python : candidates()) {
    if (fs::exists(python)) return python.string();
  }
  return "python3";
}

}  // namespace gradwire::cli
