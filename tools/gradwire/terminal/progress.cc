#include "terminal/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

namespace gradwire::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBarWidth = 24;
constexpr std::size_t kOtherWidth = 36;  // of the bar and the time that is left
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr std::string_view kWipeLine = "\r\x1b[K";

volatile std::sig_atomic_t bar_on_screen = 0;

void write_to_stderr(std::string_view text) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// Only calls what a signal handler may call. The handler was reset on entry: raising ends the
/// process the way its parent expects.
void wipe_and_end(int signal) {
  clear_progress();
  std::raise(signal);
}

void wipe_on(int signal) {
  struct sigaction action {};
  action.sa_handler = wipe_and_end;
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  sigaction(signal, &action, nullptr);
}

/// What the terminal has room for.
std::size_t text_width() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > kOtherWidth;
  return (known ? size.ws_col : 80) - kOtherWidth;
}

std::string remaining(Clock::duration elapsed, std::size_t done, std::size_t total) {
  if (done == 0) return "";
  const double seconds = std::chrono::duration<double>(elapsed).count();
  return fmt::format("  {:.0f} s left",
                     seconds / static_cast<double>(done) * static_cast<double>(total - done));
}

}  // namespace

void clear_progress() noexcept {
  if (bar_on_screen == 0) return;
  bar_on_screen = 0;
  write_to_stderr(kWipeLine);
}

Progress::Progress(std::size_t total_steps)
    : total_(std::max<std::size_t>(total_steps, 1)),
      shown_(isatty(STDERR_FILENO) != 0),
      started_(Clock::now()),
      drawn_(started_ - kRedrawInterval) {
  if (!shown_) return;
  wipe_on(SIGINT);
  wipe_on(SIGTERM);
}

Progress::~Progress() { clear_progress(); }

void Progress::begin_step(std::string_view what) {
  const std::size_t done = std::min(begun_++, total_);
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - drawn_ < kRedrawInterval) return;
  drawn_ = now;
  const std::size_t filled = kBarWidth * done / total_;
  const std::string line =
      fmt::format("{}[{:#<{}}{:-<{}}] {}{}", kWipeLine, "", filled, "", kBarWidth - filled,
                  what.substr(0, text_width()), remaining(now - started_, done, total_));
  bar_on_screen = 1;
  write_to_stderr(line);
}

}  // namespace gradwire::cli
