// JSON whose every value knows where it stands, for files that people write: what is wrong with
// them is said with the line, or with the keys that lead there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire {

struct LocatedJson {
  enum class Kind : std::uint8_t { text, count, number, list, object, other };

  Kind kind = Kind::other;
  std::string place{};      ///< where it begins, for messages: "line 3", or "plan['layers'][2]"
  std::string text{};       ///< of a text; of others what they are, for messages
  std::uint64_t count = 0;  ///< of a whole number from 0 on
  double number = 0;        ///< of a count and of any other number; finite
  std::vector<LocatedJson> list{};
  std::vector<std::pair<std::string, LocatedJson>> members{};  ///< in the order of the file

  /// Null when an object has no such member.
  const LocatedJson* find(std::string_view key) const noexcept;
};

/// Brackets in brackets that are read.
inline constexpr std::size_t kMostJsonLevels = 16;

/// Places are lines; or, of a text that was made of a value of this name in Python, expressions
/// that give the part of it, and values are called what Python calls them. Throws
/// `Error(invalid_spec)`, also for an object that has a member twice.
LocatedJson parse_located_json(std::string_view text, std::string_view name = {});

/// A text as JSON has it.
std::string quoted(const std::string& text);

/// Throws `Error(invalid_spec)` that begins with the place.
[[noreturn]] void refuse_at(const std::string& place, const std::string& why);

}  // namespace gradwire
