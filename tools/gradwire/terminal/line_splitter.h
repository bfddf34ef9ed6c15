// Bytes as they come from a pipe, cut into lines.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace gradwire::cli {

/// Holds the beginning of a line until its end comes. One thread.
class LineSplitter {
 public:
  /// A longer line is passed on in pieces, so that a program that never ends its line cannot fill
  /// the memory.
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

  /// Gets a line without its newline; the text is valid during the call.
  using Sink = std::function<void(std::string_view)>;

  void add(std::string_view bytes, const Sink& sink);

  /// Passes on a last line that has no newline. Nothing when the bytes ended with one.
  void finish(const Sink& sink);

 private:
  void keep(std::string_view bytes, const Sink& sink);

  std::string begun_;
};

}  // namespace gradwire::cli
