// What readers of files ask of a value that knows where it stands. All throw `Error(invalid_spec)`
// that names the line and what would be right there.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "plan/located_json.h"

namespace gradwire {

/// `what` is the beginning of a sentence: "'layers' is a list: expected one".
void require(const LocatedJson& value, LocatedJson::Kind kind, std::string_view what);

/// `what` names the object in sentences: "a plan".
void check_keys(const LocatedJson& object, std::string_view what,
                std::initializer_list<std::string_view> known);

const LocatedJson& member(const LocatedJson& object, std::string_view key, std::string_view what);

/// Without NUL bytes.
std::string text_member(const LocatedJson& object, std::string_view key, std::string_view what);

/// Not less than 0.
double number_member(const LocatedJson& object, std::string_view key, std::string_view what);

}  // namespace gradwire
