// A directory; a key is a file. Values appear whole: they are written aside and renamed.
//
// Without a secret the job's key is among them. Then files are for this user alone, and so is a
// directory that is made here; one in which others could put a key of theirs is refused.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "net/job.h"
#include "rendezvous/store.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(file, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return fsync(file) == 0;  // a network's file system tells here that its disk is full
}

bool read_all(int file, std::string& bytes) {
  char block[4096];
  while (true) {
    const ssize_t n = read(file, block, sizeof(block));
    if (n == 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) bytes.append(block, static_cast<std::size_t>(n));
  }
}

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

class FileStore final : public Store {
 public:
  FileStore(const std::string& directory, bool is_secret)
      : directory_(directory), mode_(is_secret ? 0600 : 0644) {
    const fs::path path = directory_.has_filename() ? directory_ : directory_.parent_path();
    std::error_code failed;
    if (path.has_parent_path()) fs::create_directories(path.parent_path(), failed);
    if (mkdir(path.c_str(), is_secret ? 0700 : 0755) != 0 && errno != EEXIST) fail("make", path);
    folder_ = FileDescriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder_) fail("open", path);
    if (is_secret) check_owner();
  }

  void set(const std::string& key, const std::string& value, Deadline) override {
    const std::string aside = fmt::format(".{}", random_name());
    FileDescriptor file = open_file(aside, O_WRONLY | O_CREAT | O_EXCL);
    if (!file) fail("make", directory_ / aside);
    const bool written = write_all(file.get(), value) &&
                         renameat(folder_.get(), aside.c_str(), folder_.get(), key.c_str()) == 0;
    if (written) return;
    const int error = errno;
    unlinkat(folder_.get(), aside.c_str(), 0);
    errno = error;
    fail("write", directory_ / key);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    while (true) {
      std::string value;
      const FileDescriptor file = open_file(key, O_RDONLY);
      if (file && read_all(file.get(), value)) return value;
      if (errno != ENOENT && errno != ESTALE) fail("read", directory_ / key);
      if (Clock::now() >= deadline) {
        throw Error(
            ErrorCode::timeout,
            fmt::format("nobody wrote '{}' to the store {} before the deadline: are all ranks "
                        "running, with the same store?",
                        key, directory_.string()));
      }
      keep_waiting();
      sleep_a_little();
    }
  }

  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override {
    const FileDescriptor file = open_file(key, O_RDWR | O_CREAT);
    if (!file) fail("open", directory_ / key);
    while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {  // it ends with the descriptor
      if (errno != EWOULDBLOCK && errno != EINTR) fail("lock", directory_ / key);
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::timeout,
                    fmt::format("{} stays locked by another process", (directory_ / key).string()));
      }
      keep_waiting();
      sleep_a_little();
    }
    std::string text;
    if (!read_all(file.get(), text)) fail("read", directory_ / key);
    const std::int64_t sum = std::strtoll(text.c_str(), nullptr, 10) + amount;
    const bool written = lseek(file.get(), 0, SEEK_SET) == 0 && ftruncate(file.get(), 0) == 0 &&
                         write_all(file.get(), std::to_string(sum));
    if (!written) fail("write", directory_ / key);
    return sum;
  }

 private:
  [[noreturn]] static void fail(const char* what, const fs::path& path) {
    throw Error(ErrorCode::io, fmt::format("cannot {} {}, of the store: {}", what, path.string(),
                                           std::strerror(errno)));
  }

  FileDescriptor open_file(const std::string& name, int how) const {
    return FileDescriptor(openat(folder_.get(), name.c_str(), how | O_NOFOLLOW | O_CLOEXEC, mode_));
  }

  void check_owner() const {
    struct stat status;
    if (fstat(folder_.get(), &status) != 0) fail("open", directory_);
    const char* const whose = status.st_uid != geteuid()    ? "belongs to another user"
                              : (status.st_mode & 022) != 0 ? "can be written by other users"
                                                            : nullptr;
    if (whose == nullptr) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the store's directory {} {}, who could join the job: take a new one, "
                            "or one of your own (chmod go-w), or give all ranks a secret",
                            directory_.string(), whose));
  }

  fs::path directory_;
  mode_t mode_;
  FileDescriptor folder_;
};

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& directory, bool is_secret) {
  return std::make_unique<FileStore>(directory, is_secret);
}

}  // namespace gradwire
