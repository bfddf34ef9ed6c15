#include "plan/pattern.h"

#include <cstddef>

namespace gradwire {
namespace {

/// Where the bracket ends that begins the pattern; npos: nowhere.
std::size_t end_of_set(std::string_view pattern) noexcept {
  const std::size_t first = pattern.starts_with("[!") ? 2 : 1;
  return pattern.find(']', first + 1);  // one that comes first belongs to the set
}

bool is_in(std::string_view set, char letter) noexcept {
  for (std::size_t i = 0; i < set.size(); ++i) {
    const bool range = i + 2 < set.size() && set[i + 1] == '-';
    if (range ? set[i] <= letter && letter <= set[i + 2] : set[i] == letter) return true;
    if (range) i += 2;
  }
  return false;
}

/// Takes what stands for one letter off the pattern, if this letter is one of those.
bool take_one(std::string_view& pattern, char letter) noexcept {
  const std::size_t end = pattern[0] == '[' ? end_of_set(pattern) : std::string_view::npos;
  bool matched = pattern[0] == '?' || pattern[0] == letter;
  if (end != std::string_view::npos) {
    const bool others = pattern[1] == '!';
    const std::size_t first = others ? 2 : 1;
    matched = is_in(pattern.substr(first, end - first), letter) != others;
  }
  if (matched) pattern.remove_prefix(end == std::string_view::npos ? 1 : end + 1);
  return matched;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) noexcept {
  std::string_view after_star;  // the pattern behind the last star
  std::string_view tried;       // the name from where that was tried last
  bool star = false;
  while (!name.empty()) {
    if (!pattern.empty() && pattern[0] == '*') {
      pattern.remove_prefix(1);
      after_star = pattern;
      tried = name;
      star = true;
    } else if (!pattern.empty() && take_one(pattern, name[0])) {
      name.remove_prefix(1);
    } else if (star) {  // which stands for one letter more
      tried.remove_prefix(1);
      pattern = after_star;
      name = tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*') == std::string_view::npos;
}

}  // namespace gradwire
