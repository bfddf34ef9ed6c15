#include "plan/json_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace gradwire {

using Kind = LocatedJson::Kind;

void require(const LocatedJson& value, Kind kind, std::string_view what) {
  if (value.kind == kind) return;
  const std::string found = value.kind == Kind::text ? quoted(value.text) : value.text;
  refuse_at(value.place, fmt::format("{} here, not {}", what, found));
}

void check_keys(const LocatedJson& object, std::string_view what,
                std::initializer_list<std::string_view> known) {
  require(object, Kind::object, fmt::format("{} is an object in braces: expected one", what));
  for (const auto& [key, value] : object.members) {
    if (std::ranges::find(known, key) != known.end()) continue;
    refuse_at(value.place,
              fmt::format("unknown key '{}'; {} has {}", key, what, fmt::join(known, ", ")));
  }
}

const LocatedJson& member(const LocatedJson& object, std::string_view key, std::string_view what) {
  const LocatedJson* const found = object.find(key);
  if (found == nullptr) refuse_at(object.place, fmt::format("{} needs '{}'", what, key));
  return *found;
}

std::string text_member(const LocatedJson& object, std::string_view key, std::string_view what) {
  const LocatedJson& value = member(object, key, what);
  require(value, Kind::text, fmt::format("'{}' is a text: expected one", key));
  if (value.text.find('\0') != std::string::npos) {
    refuse_at(value.place, fmt::format("'{}' has a NUL byte: leave it out", key));
  }
  return value.text;
}

double number_member(const LocatedJson& object, std::string_view key, std::string_view what) {
  const LocatedJson& value = member(object, key, what);
  if (value.kind != Kind::count) {
    require(value, Kind::number, fmt::format("'{}' is a number: expected one", key));
  }
  if (value.number < 0) {
    refuse_at(value.place, fmt::format("'{}' is {}: it cannot be less than 0", key, value.text));
  }
  return value.number;
}

}  // namespace gradwire
