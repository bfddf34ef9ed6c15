// The processes of one job, from their start until the last has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "run/child_process.h"
#include "run/interruption.h"
#include "run/process_namespace.h"
#include "terminal/line_splitter.h"

namespace gradwire::cli {

enum class Stream : std::uint8_t { output, errors };

/// One line that a rank printed, without its newline. `text` is valid during the call.
struct OutputLine {
  unsigned rank;
  Stream stream;
  std::string_view text;
};
using LineSink = std::function<void(const OutputLine&)>;

/// What one rank executes.
struct RankCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< NAME=value, all of it
  int network_namespace = -1;            ///< belongs to the caller
};

struct RunOptions {
  LineSink on_line;  ///< called by the waiting thread, for every line of every rank
  std::optional<std::chrono::milliseconds> timeout;
};

/// How a run ended. The first thing that went wrong counts; what the other ranks did because of it
/// does not.
struct Outcome {
  enum class Kind : std::uint8_t {
    succeeded,    ///< every rank returned 0
    rank_failed,  ///< `rank` ended with `status`
    timed_out,
    interrupted,  ///< by `signal`
  };
  Kind kind = Kind::succeeded;
  unsigned rank = 0;
  int status = 0;  ///< as a shell shows it: an exit code, or 128 + a signal's number
  int signal = 0;
};

/// Starts all ranks and collects what they print. One thread. The ranks read no input. When one
/// fails, the time is up or a signal comes, the others get SIGTERM, and SIGKILL after 5 s or at the
/// next signal. Nothing of the job outlives the object, nor the process if that is killed.
class RankRun {
 public:
  /// Throws Error when a rank cannot be started; the others are ended then.
  RankRun(const std::vector<RankCommand>& commands, RunOptions options);
  ~RankRun();

  /// Once.
  Outcome wait();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank;

  void start(const std::vector<RankCommand>& commands);
  bool any_running() const;
  int milliseconds_to_next_deadline() const;
  void wait_for_events();
  void handle_deadlines();
  void handle_signals();
  void handle_end_of(unsigned rank);
  bool read_output_of(unsigned rank);
  void end_because(const Outcome& outcome);
  void signal_all(int signal);

  RunOptions options_;
  Outcome outcome_;
  Clock::time_point time_is_up_;
  Clock::time_point kill_at_ = Clock::time_point::max();
  bool ending_ = false;
  Interruption interruption_;
  std::unique_ptr<ProcessNamespace> namespace_;
  std::vector<Rank> ranks_;  // after namespace_: they must be waited for before it
};

}  // namespace gradwire::cli
