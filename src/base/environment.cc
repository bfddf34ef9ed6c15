#include "gradwire/environment.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "gradwire/error.h"
#include "gradwire/isa.h"

extern char** environ;

namespace gradwire {
namespace {

constexpr std::string_view kPrefix = "GRADWIRE_";

struct Variable {
  std::string_view name;
  void (*apply)(std::string_view value);
};

void leave_to_python(std::string_view) {}  // python/gradwire/torch/settings.py

constexpr Variable kVariables[] = {
    {"GRADWIRE_ISA", use_isa},
    {"GRADWIRE_CLIP", leave_to_python},
    {"GRADWIRE_CODEC", leave_to_python},
    {"GRADWIRE_CONNECT_TIMEOUT", leave_to_python},
    {"GRADWIRE_EXACT", leave_to_python},
    {"GRADWIRE_INTERFACE", leave_to_python},
    {"GRADWIRE_PLAN", leave_to_python},
    {"GRADWIRE_RESIDUAL", leave_to_python},
    {"GRADWIRE_SAVE_PLAN", leave_to_python},
    {"GRADWIRE_SECRET", leave_to_python},
    {"GRADWIRE_SUMMARY", leave_to_python},
    {"GRADWIRE_TRACE", leave_to_python},
    {"GRADWIRE_WARMUP", leave_to_python},
};

const Variable* find(std::string_view name) {
  for (const Variable& variable : kVariables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

std::string known_names() {
  std::string names;
  for (const Variable& variable : kVariables) {
    names += (names.empty() ? "" : ", ") + std::string(variable.name);
  }
  return names;
}

}  // namespace

void configure_from_environment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPrefix)) continue;
    const std::string name(text.substr(0, text.find('=')));
    const Variable* variable = find(name);
    if (variable == nullptr) {
      throw Error(ErrorCode::invalid_argument,
                  "unknown environment variable " + name + "; gradwire reads: " + known_names());
    }
    try {
      variable->apply(text.substr(name.size() + 1));
    } catch (const Error& error) {
      throw Error(error.code(), name + ": " + error.what());
    }
  }
}

}  // namespace gradwire
