// A bar on stderr for work that takes seconds. Nothing is written unless stderr is a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>

namespace gradwire::cli {

/// One bar at a time. The destructor wipes it, so tables and messages start on an empty line;
/// Ctrl-C wipes it too and then ends the process as usual.
class Progress {
 public:
  explicit Progress(std::size_t total_steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Says what is being worked on; call before each of the `total_steps` steps.
  void begin_step(std::string_view what);

 private:
  std::size_t total_;
  std::size_t begun_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point drawn_;
};

/// Wipes a bar that an exception left behind.
void clear_progress() noexcept;

}  // namespace gradwire::cli
