// A network of its own for some processes: interfaces, addresses, queues.
#pragma once

#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace gradwire::cli {

/// An unnamed network namespace. It lives as long as this object or a process inside it does; then
/// the kernel removes it with its interfaces, however the end came.
class NetworkNamespace {
 public:
  /// Throws Error(unavailable) when the user may not.
  NetworkNamespace();

  int descriptor() const noexcept { return descriptor_.get(); }

  /// A name that `ip` takes for it, good in this process and its children.
  std::string path() const;

  /// Runs the lines of `commands` inside by `ip -batch` or `tc -batch` (`program`: "ip", "tc").
  /// Throws Error(unavailable) with the program's own words when one fails; the lines before it
  /// stay done.
  void configure(std::string_view program, std::string_view commands) const;

 private:
  FileDescriptor descriptor_;
};

}  // namespace gradwire::cli
