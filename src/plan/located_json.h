// JSON whose every value knows its line, for files that people write: what is wrong with them is
// said with the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire {

struct LocatedJson {
  enum class Kind : std::uint8_t { text, count, list, object, other };

  Kind kind = Kind::other;
  std::size_t line = 1;     ///< on which it begins
  std::string text{};       ///< of a text; of others what they are, for messages
  std::uint64_t count = 0;  ///< of a whole number from 0 on
  std::vector<LocatedJson> list{};
  std::vector<std::pair<std::string, LocatedJson>> members{};  ///< in the order of the file

  /// Null when an object has no such member.
  const LocatedJson* find(std::string_view key) const noexcept;
};

/// Throws `Error(invalid_spec)`, also for an object that has a member twice.
LocatedJson parse_located_json(std::string_view text);

/// Throws `Error(invalid_spec)` that begins with the line.
[[noreturn]] void refuse_line(std::size_t line, const std::string& why);

}  // namespace gradwire
