// The command line: the list of subcommands, and how failures leave it.
//
// Exit codes: 0 done, 1 failed (a damaged frame, an unreadable file), 2 used wrongly (an unknown
// option, codec or instruction set). Every failure is one sentence on stderr that says what to do.
// `gradwire hosts` ends with the exit code of the command it ran.
#include <CLI/CLI.hpp>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>

#include "gradwire/environment.h"
#include "gradwire/error.h"
#include "run/interruption.h"
#include "subcommands.h"
#include "terminal/progress.h"

namespace gradwire::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kUsedWrongly = 2;

void add_subcommands(CLI::App& app) {
  app.set_version_flag("--version", "gradwire " GRADWIRE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  gradwire bench codec                     speed of every codec beside memcpy\n"
      "  gradwire bench distortion --json         bits and error on synthetic data, for scripts\n"
      "  gradwire calibrate                       what codecs and links cost here, for plans\n"
      "  gradwire plan --model vgg16 --link 1gbit what compression gains, and which way tensors "
      "go\n"
      "  gradwire inspect frame.bin               what a frame holds\n"
      "  gradwire hosts --count 4 -- COMMAND      a job on four hosts that this machine plays\n"
      "  gradwire run --nproc-per-node 4 train.py torchrun with compressed gradients\n"
      "  gradwire trace run/ -o job.pftrace       all ranks of a traced job, for Perfetto\n"
      "\n"
      "GRADWIRE_ISA=scalar|avx2|... chooses the vector instructions; every choice gives the same "
      "bytes.");

  CLI::App& bench = *app.add_subcommand("bench", "Measure speed and error on this machine");
  bench.require_subcommand(1);
  bench.footer(
      "Examples:\n"
      "  gradwire bench codec --codec grid:step=0.5 --bytes 1M\n"
      "  gradwire bench distortion --gradients data/gradients.safetensors\n"
      "  gradwire bench adapt --gradients data/gradients.safetensors\n"
      "  gradwire bench coder --json\n"
      "  gradwire bench select --density 0.01\n"
      "  gradwire bench train --model vgg --hosts 4 --link 1gbit");
  add_bench_codec(bench);
  add_bench_distortion(bench);
  add_bench_coder(bench);
  add_bench_adapt(bench);
  add_bench_select(bench);
  add_bench_allreduce(bench);
  add_bench_train(bench);
  add_bench_plan(bench);
  add_bench_predict(bench);
  add_calibrate(app);
  add_plan(app);
  add_simulate(app);
  add_inspect(app);
  add_hosts(app);
  add_run(app);
  add_schedule(app);
  add_trace(app);
}

/// The command that the arguments named, as far as they did: "gradwire bench codec".
const CLI::App& deepest_command(const CLI::App& app, std::string& name) {
  name += (name.empty() ? "" : " ") + app.get_name();
  const auto used = app.get_subcommands();
  return used.empty() ? app : deepest_command(*used.front(), name);
}

std::string choices(const CLI::App& command) {
  std::string names;
  for (const CLI::App* choice : command.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + choice->get_name();
  }
  return names;
}

/// Joins what is wrong and its remedy into one sentence.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  std::string name;
  const CLI::App& command = deepest_command(app, name);
  std::string message = error.what();
  if (command.get_require_subcommand_min() > 0) message = "Name one of: " + choices(command);
  const bool capitalised =
      message.size() > 1 && std::isupper(static_cast<unsigned char>(message[1])) == 0;
  if (capitalised) {
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  }
  return name + ": " + message + "; see " + name + " --help";
}

int fail(const std::string& message, int exit_code) {
  clear_progress();
  std::fprintf(stderr, "%s\n", message.c_str());
  return exit_code;
}

/// The caller sees a process that the signal ended, as with any other program.
int end_by(int signal) {
  clear_progress();
  std::fflush(stdout);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  return 128 + signal;
}

bool is_usage(ErrorCode code) {
  return code == ErrorCode::invalid_spec || code == ErrorCode::invalid_argument ||
         code == ErrorCode::unavailable;
}

/// A full disk or a closed pipe must not pass for success.
int finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return fail("gradwire: the output could not be written; check the disk or the pipe", kFailed);
}

int run(int argc, char** argv) {
  configure_from_environment();
  CLI::App app("gradwire compresses the gradients that training workers exchange.", "gradwire");
  add_subcommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and --version
    app.exit(success);
  } catch (const CLI::RuntimeError& ended) {  // by the command that was run; it has said why
    const int unwritten = finish_output();
    return unwritten != 0 ? unwritten : ended.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return fail(usage_message(app, error), kUsedWrongly);
  }
  return finish_output();
}

int guarded_run(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Interrupted& by) {
    return end_by(by.signal);
  } catch (const Error& error) {
    return fail(std::string("gradwire: ") + error.what(),
                is_usage(error.code()) ? kUsedWrongly : kFailed);
  } catch (const std::bad_alloc&) {
    return fail("gradwire: there is not enough memory; choose smaller sizes or free some", kFailed);
  } catch (const std::exception& error) {
    return fail(std::string("gradwire: ") + error.what(), kFailed);
  }
}

}  // namespace
}  // namespace gradwire::cli

int main(int argc, char** argv) { return gradwire::cli::guarded_run(argc, argv); }
