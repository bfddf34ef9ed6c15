// `gradwire hosts`: a command on several hosts, which one machine plays.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "hosts/test_hosts.h"
#include "run/interruption.h"
#include "subcommands.h"

namespace gradwire::cli {
namespace {

constexpr int kTimedOut = 124;  // as timeout(1) says it
constexpr double kMaxTimeoutSeconds = 1e6;

struct Options {
  unsigned count = 2;
  unsigned ranks_per_host = 1;
  std::string link = "1gbit";
  std::uint16_t port = 29500;
  double timeout_seconds = 0;  // 0: none
  bool no_prefix = false;
  std::string program;
};

/// What stands behind "--". Without it an option of the command would be taken for one of ours.
std::vector<std::string> command_of(const Options& options, std::vector<std::string> rest) {
  if (rest.empty() || rest.front() != "--") {
    throw Error(ErrorCode::invalid_argument,
                "write -- before the command: gradwire hosts --count 4 -- COMMAND");
  }
  rest.front() = options.program;
  return rest;
}

/// At once, and each line whole: who reads both streams sees them in the order of printing.
void print_line(const OutputLine& line, bool prefix) {
  std::FILE* const file = line.stream == Stream::output ? stdout : stderr;
  std::string text = prefix ? fmt::format("[{}] ", line.rank) : "";
  text += line.text;
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

RunOptions run_options(const Options& options) {
  RunOptions run;
  run.on_line = [prefix = !options.no_prefix](const OutputLine& line) { print_line(line, prefix); };
  if (options.timeout_seconds > 0) {
    run.timeout = std::chrono::milliseconds(static_cast<long>(1000 * options.timeout_seconds));
  }
  return run;
}

std::string describe_status(int status) {
  if (status <= 128 || status >= 128 + NSIG) return fmt::format("with exit code {}", status);
  return fmt::format("by signal {} ({})", status - 128, strsignal(status - 128));
}

[[noreturn]] void end_with(int exit_code, const std::string& message) {
  std::fprintf(stderr, "gradwire: %s\n", message.c_str());
  throw CLI::RuntimeError(exit_code);
}

void report(const Outcome& outcome, const Options& options) {
  switch (outcome.kind) {
    case Outcome::Kind::succeeded:
      return;
    case Outcome::Kind::rank_failed:
      end_with(
          outcome.status,
          fmt::format("rank {} on host {} failed first, {}; the others were ended", outcome.rank,
                      outcome.rank / options.ranks_per_host, describe_status(outcome.status)));
    case Outcome::Kind::timed_out:
      end_with(kTimedOut, fmt::format("not done after {} s, so all ranks were ended; see --timeout",
                                      options.timeout_seconds));
    case Outcome::Kind::interrupted:
      throw Interrupted{outcome.signal};
  }
}

void run(const Options& options, std::vector<std::string> rest) {
  HostCommand command;
  command.arguments = command_of(options, std::move(rest));
  command.ranks_per_host = options.ranks_per_host;
  command.port = options.port;
  const LinkRate link = parse_link_rate(options.link);
  const TestHosts hosts(options.count, link);
  report(hosts.run(command, run_options(options)), options);
}

void add_options(CLI::App& command, Options& options) {
  command.add_option("--count", options.count, "Hosts (default: 2)")
      ->type_name("N")
      ->check(CLI::Range(1U, TestHosts::kMaxCount));
  command
      .add_option("--link", options.link,
                  "Each link's speed, both ways: 100mbit, 2.5gbit, ... or none (default: 1gbit)")
      ->type_name("RATE");
  command.add_option("--ranks-per-host", options.ranks_per_host, "Processes on each (default: 1)")
      ->type_name("N")
      ->check(CLI::Range(1U, 256U));
  command.add_option("--port", options.port, "MASTER_PORT (default: 29500)")
      ->type_name("PORT")
      ->check(CLI::Range(1U, 65535U));
  command.add_option("--timeout", options.timeout_seconds, "End all ranks then (default: never)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, kMaxTimeoutSeconds));
  command.add_flag("--no-prefix", options.no_prefix, "Print lines without the rank before them");
  command
      .add_option("COMMAND", options.program, "What each rank runs, and its arguments, after --")
      ->type_name(" ")
      ->required();
}

}  // namespace

void add_hosts(CLI::App& gradwire) {
  CLI::App& command = *gradwire.add_subcommand(
      "hosts", "Run a command on several hosts with slow links, all on this machine");
  const auto options = std::make_shared<Options>();
  add_options(command, *options);
  command.prefix_command();  // the command's arguments stay as they are
  command.footer(
      "Examples:\n"
      "  gradwire hosts --count 4 --link 1gbit -- python train.py\n"
      "  gradwire hosts --count 2 --link 100mbit --ranks-per-host 2 -- sh -c 'echo $RANK; ip a'\n"
      "  gradwire hosts --count 8 --link none --timeout 60 --no-prefix -- ./worker --steps 10\n"
      "\n"
      "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT "
      "and\n"
      "GLOO_SOCKET_IFNAME in its environment. The exit code is that of the rank that failed "
      "first.\n"
      "Needs root, and leaves nothing behind.");
  command.callback([options, &command] { run(*options, command.remaining()); });
}

}  // namespace gradwire::cli
