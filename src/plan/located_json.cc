#include "plan/located_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gradwire/error.h"

namespace gradwire {
namespace {

using Kind = LocatedJson::Kind;

/// Counts the lines that the parser has come past.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* line;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    *line += *at == '\n' ? 1 : 0;
    ++at;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at == b.at;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) {
    return a.at != b.at;
  }
};

/// Values as the parser comes to them.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::size_t& line, std::string_view name) : line_(line), by_line_(name.empty()) {
    root.place = by_line_ ? here() : name;
  }

  LocatedJson root;

  bool null() override {
    add(Kind::other, by_line_ ? "null" : "None");
    return true;
  }
  bool boolean(bool value) override {
    const char* const in_file = value ? "true" : "false";
    add(Kind::other, by_line_ ? in_file : value ? "True" : "False");
    return true;
  }
  bool number_integer(number_integer_t value) override {
    add(Kind::number, std::to_string(value)).number = static_cast<double>(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    LocatedJson& added = add(Kind::count, std::to_string(value));
    added.count = value;
    added.number = static_cast<double>(value);
    return true;
  }
  bool number_float(number_float_t value, const string_t& text) override {
    add(Kind::number, text).number = value;
    return true;
  }
  bool string(string_t& value) override {
    add(Kind::text, std::move(value));
    return true;
  }
  bool binary(binary_t&) override { return false; }  // there is none in texts
  bool start_object(std::size_t) override {
    return open(Kind::object, by_line_ ? "an object" : "a dict");
  }
  bool start_array(std::size_t) override { return open(Kind::list, "a list"); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    LocatedJson& object = *open_.back();
    if (object.find(key) != nullptr) refuse_here(fmt::format("'{}' is given twice", key));
    std::string place = by_line_ ? here() : fmt::format("{}['{}']", object.place, key);
    object.members.emplace_back(std::move(key), LocatedJson{.place = std::move(place)});
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    const std::string_view what = error.what();  // "[…] parse error at line 1, column 2: why"
    const std::size_t begin = what.find(": ");
    std::string why(begin == std::string_view::npos ? what : what.substr(begin + 2));
    // It quotes what it has read, which may be no text.
    std::ranges::replace_if(
        why, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
    refuse_here("this is no JSON: " + why);
  }

 private:
  std::string here() const { return fmt::format("line {}", line_); }
  [[noreturn]] void refuse_here(const std::string& why) const {
    refuse_at(by_line_ ? here() : open_.empty() ? root.place : open_.back()->place, why);
  }
  /// Where the value belongs that comes now. A member's line is its key's: behind a number the
  /// parser has seen the next line already.
  LocatedJson& place() {
    if (open_.empty()) return root;
    LocatedJson& parent = *open_.back();
    if (parent.kind == Kind::object) return parent.members.back().second;
    return parent.list.emplace_back(LocatedJson{
        .place = by_line_ ? here() : fmt::format("{}[{}]", parent.place, parent.list.size())});
  }
  LocatedJson& add(Kind kind, std::string text) {
    LocatedJson& value = place();
    value.kind = kind;
    value.text = std::move(text);
    return value;
  }
  bool open(Kind kind, const char* what) {
    if (open_.size() == kMostJsonLevels) refuse_here("there are too many brackets in brackets");
    open_.push_back(&add(kind, what));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::size_t& line_;
  const bool by_line_;              // else by the keys
  std::vector<LocatedJson*> open_;  // valid: only the last one's children grow
};

}  // namespace

const LocatedJson* LocatedJson::find(std::string_view key) const noexcept {
  const auto found = std::ranges::find(
      members, key, [](const auto& member) -> std::string_view { return member.first; });
  return found == members.end() ? nullptr : &found->second;
}

LocatedJson parse_located_json(std::string_view text, std::string_view name) {
  std::size_t line = 1;
  Builder builder(line, name);
  const CountingIterator begin{text.data(), &line}, end{text.data() + text.size(), &line};
  nlohmann::json::sax_parse(begin, end, &builder);
  return std::move(builder.root);
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void refuse_at(const std::string& place, const std::string& why) {
  throw Error(ErrorCode::invalid_spec, fmt::format("{}: {}", place, why));
}

}  // namespace gradwire
