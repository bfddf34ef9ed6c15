// Which Python runs the parts of the command line that are written in it.
#pragma once

#include <string>

namespace gradwire::cli {

/// What `--python` says about its default.
inline constexpr const char* kPythonHelp =
    "Python that has torch (default: that of the virtual environment this program is in, that of "
    "the active one, the project's .venv, or python3)";

/// `asked`, unless it is empty; otherwise the first that exists of the defaults above. A name
/// without a slash is looked up in PATH when it is run.
std::string find_python(const std::string& asked);

}  // namespace gradwire::cli
