#include "run/rank_run.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <future>
#include <utility>

namespace gradwire::cli {
namespace {

constexpr auto kGrace = std::chrono::seconds(5);  // between SIGTERM and SIGKILL

/// The reading end of what a rank prints, and the line it is in.
struct Printed {
  FileDescriptor end;
  LineSplitter lines;
};

struct Streams {
  Pipe output;
  Pipe errors;
};

FileDescriptor without_waiting(FileDescriptor descriptor) {
  fcntl(descriptor.get(), F_SETFL, O_NONBLOCK);
  return descriptor;
}

Launch launch_of(const RankCommand& command, const Streams& streams, int input) {
  return {.arguments = command.arguments,
          .environment = command.environment,
          .input = input,
          .output = streams.output.write.get(),
          .errors = streams.errors.write.get(),
          .network_namespace = command.network_namespace,
          .private_proc = true};
}

/// Passes on what a pipe holds at the moment, at most `kPiece`, so that one rank that prints
/// without pause does not keep the others waiting. False when there was nothing.
bool read_some(Printed& printed, const LineSplitter::Sink& sink) {
  constexpr std::size_t kPiece = 65536;  // what a pipe holds
  char piece[kPiece];
  const ssize_t size = read(printed.end.get(), piece, sizeof piece);
  if (size > 0) {
    printed.lines.add({piece, static_cast<std::size_t>(size)}, sink);
    return true;
  }
  if (size == 0) {
    printed.lines.finish(sink);
    printed.end = FileDescriptor();
  }
  return false;
}

}  // namespace

struct RankRun::Rank {
  Rank(const RankCommand& command, Streams streams, int input)
      : process(launch_of(command, streams, input)),
        output{without_waiting(std::move(streams.output.read)), {}},
        errors{without_waiting(std::move(streams.errors.read)), {}} {}

  ChildProcess process;
  bool running = true;
  Printed output;
  Printed errors;
};

RankRun::RankRun(const std::vector<RankCommand>& commands, RunOptions options)
    : options_(std::move(options)), time_is_up_(Clock::time_point::max()) {
  // A thread of its own, because its children are born in the process namespace ever after.
  std::async(std::launch::async, [&] { start(commands); }).get();
  if (options_.timeout) time_is_up_ = Clock::now() + *options_.timeout;
}

RankRun::~RankRun() = default;

void RankRun::start(const std::vector<RankCommand>& commands) {
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) fail_with_errno("cannot open /dev/null");
  namespace_ = std::make_unique<ProcessNamespace>();
  ranks_.reserve(commands.size());
  for (const RankCommand& command : commands) {
    ranks_.emplace_back(command, Streams(), nothing.get());
  }
}

Outcome RankRun::wait() {
  while (any_running()) {
    wait_for_events();
    handle_signals();
    handle_deadlines();
  }
  namespace_.reset();  // ends what left its group, and with it the last who could still print
  for (unsigned rank = 0; rank < ranks_.size(); ++rank) {
    while (read_output_of(rank)) {
    }
  }
  return outcome_;
}

bool RankRun::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

int RankRun::milliseconds_to_next_deadline() const {
  const Clock::time_point next = ending_ ? kill_at_ : time_is_up_;
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

/// Negative descriptors, of what is closed already, do not take part in a poll.
void RankRun::wait_for_events() {
  std::vector<pollfd> events{{interruption_.descriptor(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    events.push_back({rank.running ? rank.process.end_descriptor() : -1, POLLIN, 0});
    events.push_back({rank.output.end.get(), POLLIN, 0});
    events.push_back({rank.errors.end.get(), POLLIN, 0});
  }
  if (poll(events.data(), events.size(), milliseconds_to_next_deadline()) < 0) return;
  for (unsigned rank = 0; rank < ranks_.size(); ++rank) {
    const pollfd* const event = &events[1 + 3 * std::size_t{rank}];
    if (event[1].revents != 0 || event[2].revents != 0) read_output_of(rank);
    if (event[0].revents != 0) handle_end_of(rank);
  }
}

bool RankRun::read_output_of(unsigned rank) {
  const auto sink_of = [&](Stream stream) {
    return [this, rank, stream](std::string_view text) {
      if (options_.on_line) options_.on_line({rank, stream, text});
    };
  };
  const bool output = read_some(ranks_[rank].output, sink_of(Stream::output));
  const bool errors = read_some(ranks_[rank].errors, sink_of(Stream::errors));
  return output || errors;
}

void RankRun::handle_end_of(unsigned rank) {
  ranks_[rank].running = false;
  const int status = ranks_[rank].process.wait();
  if (status != 0) end_because({Outcome::Kind::rank_failed, rank, status, 0});
}

void RankRun::handle_signals() {
  for (int signal = 0; (signal = interruption_.next()) != 0;) {
    if (ending_) kill_at_ = Clock::now();
    end_because({Outcome::Kind::interrupted, 0, 128 + signal, signal});
  }
}

void RankRun::handle_deadlines() {
  const Clock::time_point now = Clock::now();
  if (now >= time_is_up_) end_because({Outcome::Kind::timed_out, 0, 0, 0});
  if (ending_ && now >= kill_at_) {
    signal_all(SIGKILL);
    kill_at_ = Clock::time_point::max();
  }
}

void RankRun::end_because(const Outcome& outcome) {
  if (ending_) return;
  ending_ = true;
  outcome_ = outcome;
  kill_at_ = Clock::now() + kGrace;
  signal_all(SIGTERM);
}

void RankRun::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.running) rank.process.signal_group(signal);
  }
}

}  // namespace gradwire::cli
