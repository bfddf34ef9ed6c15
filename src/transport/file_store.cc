// A directory; a key is a file. Values appear whole: they are written aside and renamed.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "gradwire/error.h"
#include "transport/store.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& directory) : directory_(directory) {
    std::error_code failed;
    fs::create_directories(directory_, failed);
    if (failed) {
      throw Error(ErrorCode::io, fmt::format("cannot make the store's directory {}: {}", directory,
                                             failed.message()));
    }
  }

  void set(const std::string& key, const std::string& value, Deadline) override {
    const fs::path aside = directory_ / fmt::format(".{}.{}", key, getpid());
    std::ofstream file(aside, std::ios::binary);
    file << value;
    file.close();
    std::error_code failed;
    if (file) fs::rename(aside, directory_ / key, failed);
    if (!file || failed) {
      throw Error(ErrorCode::io, fmt::format("cannot write {}: is the disk full?", aside.string()));
    }
  }

  std::string get(const std::string& key, Deadline deadline) override {
    while (true) {
      std::ifstream file(directory_ / key, std::ios::binary);
      if (file) {
        std::ostringstream value;
        value << file.rdbuf();
        return value.str();
      }
      if (Clock::now() >= deadline) {
        throw Error(
            ErrorCode::timeout,
            fmt::format("nobody wrote '{}' to the store {} before the deadline: are all ranks "
                        "running, with the same store?",
                        key, directory_.string()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  fs::path directory_;
};

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& directory) {
  return std::make_unique<FileStore>(directory);
}

}  // namespace gradwire
