// `gradwire run`: torchrun with compressed gradients. Python does it; this finds the Python.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "run/python_interpreter.h"
#include "subcommands.h"

namespace gradwire::cli {
namespace {

/// Becomes that program, so that signals and the exit code are its own.
[[noreturn]] void become(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw Error(ErrorCode::unavailable, "cannot run " + arguments[0] + ": " + std::strerror(errno) +
                                          "; name a Python that has gradwire with --python");
}

}  // namespace

void add_run(CLI::App& gradwire) {
  CLI::App& command = *gradwire.add_subcommand(
      "run", "Run a PyTorch script as torchrun does, with its gradients compressed");
  const auto python = std::make_shared<std::string>();
  command.add_option("--python", *python, kPythonHelp);
  command.set_help_flag();   // Python knows the other options, and explains all of them
  command.prefix_command();  // they stay as they are
  command.callback([python, &command] {
    // -P: not what the working directory may have under the name of the package.
    std::vector<std::string> arguments{find_python(*python), "-P", "-m", "gradwire.torch.run"};
    for (std::string& argument : command.remaining()) arguments.push_back(std::move(argument));
    become(std::move(arguments));
  });
}

}  // namespace gradwire::cli
