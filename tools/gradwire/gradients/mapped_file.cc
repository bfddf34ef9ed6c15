#include "gradients/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::io, "cannot read " + path + ": " + why);
}

/// An open file that closes itself; a mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) fail(path, std::strerror(errno));
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  struct stat status {};
  if (fstat(file.number(), &status) != 0) fail(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(path, "it is not a regular file; name a file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses to map nothing
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (mapping == MAP_FAILED) fail(path, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(mapping), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace gradwire::cli
