#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "gradwire/error.h"

namespace gradwire {
namespace {

/// What `body()` returns in the child of a fork, which ends without a word.
template <class Body>
int in_a_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }

FileDescriptor any_file() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
FileDescriptor private_file() {
  return FileDescriptor::not_inherited([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); });
}

TEST(FileDescriptor, children_inherit_it_unless_it_is_private) {
  const FileDescriptor inherited = any_file();
  const FileDescriptor own = private_file();
  const int number = own.get();
  EXPECT_EQ(0, in_a_child([&] {
              return is_open(inherited.get()) && !is_open(number) && own.get() == -1 && !own;
            }));
  EXPECT_TRUE(is_open(number));
  EXPECT_EQ(own.get(), number);
}

TEST(FileDescriptor, a_child_does_not_close_what_took_a_private_ones_number) {
  std::optional<FileDescriptor> own = private_file();
  const int number = own->get();
  EXPECT_EQ(0, in_a_child([&] {
              const int reused = open("/dev/null", O_RDONLY | O_CLOEXEC);
              own.reset();
              return reused == number && is_open(reused);
            }));
}

TEST(FileDescriptor, a_private_one_that_moves_or_ends_is_followed) {
  FileDescriptor first = private_file();
  const int number = first.get();
  FileDescriptor second = std::move(first);
  EXPECT_EQ(0, in_a_child([&] { return !is_open(number); }));
  second = FileDescriptor();
  const FileDescriptor other = any_file();  // takes the number, and is inherited
  EXPECT_EQ(other.get(), number);
  EXPECT_EQ(0, in_a_child([&] { return is_open(number); }));
}

TEST(FileDescriptor, children_of_children_have_their_own) {
  EXPECT_EQ(0, in_a_child([] {
              const FileDescriptor own = private_file();
              const int number = own.get();
              return is_open(number) && in_a_child([&] { return !is_open(number); }) == 0;
            }));
}

TEST(FileDescriptor, no_child_has_one_that_another_thread_was_just_opening) {
  std::atomic<bool> stop = false;
  std::thread opens([&] {
    while (!stop) {
      FileDescriptor::not_inherited([] { return memfd_create("private", MFD_CLOEXEC); });
    }
  });
  const auto has_none = [] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the directory itself, by then
      const auto target = std::filesystem::read_symlink(entry, gone).string();
      if (target.starts_with("/memfd:private")) return false;
    }
    return true;
  };
  int with_one = 0;
  for (int i = 0; i < 100; ++i) with_one += in_a_child(has_none) != 0;
  EXPECT_EQ(with_one, 0);
  stop = true;
  opens.join();
}

TEST(HomeProcess, tells_a_child_whose_it_is) {
  const HomeProcess home;
  EXPECT_NO_THROW(home.require("communicator"));
  const std::string expected = "process " + std::to_string(getpid());
  EXPECT_EQ(0, in_a_child([&] {
              try {
                home.require("communicator");
                return false;
              } catch (const Error& error) {
                return !home.here() && error.code() == ErrorCode::invalid_argument &&
                       std::string(error.what()).find(expected) != std::string::npos;
              }
            }));
}

}  // namespace
}  // namespace gradwire
