#include "codec/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "gradwire/error.h"

namespace gradwire {

SpecReader::SpecReader(std::string_view spec, std::string_view kind)
    : spec_(spec), kind_(kind), name_(spec.substr(0, spec.find(':'))) {
  if (name_.size() == spec.size()) return;
  std::string_view rest = spec.substr(name_.size() + 1);
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      throw Error(
          ErrorCode::invalid_spec,
          fmt::format("'{}' in {} spec '{}' is not of the form key=value", item, kind, spec));
    }
    const std::string_view key = item.substr(0, equals);
    if (has(key)) {
      throw Error(ErrorCode::invalid_spec,
                  fmt::format("'{}' is given twice in {} spec '{}'", key, kind, spec));
    }
    settings_.emplace_back(key, item.substr(equals + 1));
    if (item.size() == rest.size()) return;
    rest.remove_prefix(item.size() + 1);
  }
}

bool SpecReader::has(std::string_view key) const noexcept {
  return std::any_of(settings_.begin(), settings_.end(),
                     [&](const auto& s) { return s.first == key; });
}

std::optional<std::string_view> SpecReader::find(std::string_view key) {
  known_.push_back(key);
  for (const auto& [name, value] : settings_) {
    if (name == key) return value;
  }
  return std::nullopt;
}

void SpecReader::refuse(std::string_view key, std::string_view value,
                        const std::string& allowed) const {
  throw Error(ErrorCode::invalid_spec, fmt::format("'{}={}' in {} spec '{}': {} takes {}", key,
                                                   value, kind_, spec_, key, allowed));
}

std::uint32_t SpecReader::integer(std::string_view key, std::uint32_t fallback, std::uint32_t low,
                                  std::uint32_t high) {
  const auto text = find(key);
  if (!text) return fallback;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < low || value > high) {
    refuse(key, *text, fmt::format("a whole number from {} to {}", low, high));
  }
  return value;
}

float SpecReader::number(std::string_view key, float fallback, float low, float high) {
  const auto text = find(key);
  if (!text) return fallback;
  float value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() ||
      !(value >= low && value <= high)) {
    refuse(key, *text, fmt::format("a number from {} to {}", low, high));
  }
  return value;
}

std::uint8_t SpecReader::choice(std::string_view key, std::uint8_t fallback,
                                std::span<const std::string_view> values) {
  const auto text = find(key);
  if (!text) return fallback;
  const auto found = std::find(values.begin(), values.end(), *text);
  if (found == values.end()) refuse(key, *text, fmt::format("one of: {}", fmt::join(values, ", ")));
  return static_cast<std::uint8_t>(found - values.begin());
}

void SpecReader::finish() const {
  for (const auto& [key, value] : settings_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string known =
        known_.empty() ? "no keys" : fmt::format("the keys: {}", fmt::join(known_, ", "));
    throw Error(ErrorCode::invalid_spec,
                fmt::format("unknown key '{}' in {} spec '{}'; {} takes {}", key, kind_, spec_,
                            name_, known));
  }
}

}  // namespace gradwire
