// Patterns of names, as in a shell.
#pragma once

#include <fnmatch.h>

#include <string>

namespace gradwire {

/// `*` stands for any letters, `?` for one, `[a-c]` and `[!a-c]` for one of these and one of the
/// others. Capital letters are others.
inline bool matches(const std::string& pattern, const std::string& name) noexcept {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace gradwire
