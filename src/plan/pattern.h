// Patterns of names, as in a shell and in Python's fnmatch.
#pragma once

#include <string_view>

namespace gradwire {

/// `*` stands for any letters, `?` for one, `[a-c]` and `[!a-c]` for one of these and one of the
/// others; a bracket that nothing closes stands for itself. Capital letters are others.
bool matches(std::string_view pattern, std::string_view name) noexcept;

}  // namespace gradwire
