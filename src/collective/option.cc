#include "collective/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr std::array kMoveNames{"encode",     "decode", "all_reduce", "reduce_scatter", "reduce",
                                "all_to_all", "gather", "all_gather", "broadcast"};
constexpr std::array kLevelNames{"", "inside.", "between."};
constexpr std::string_view kElsewhere = "@other";

std::string text_of(const Action& action) {
  return fmt::format("{}{}{}", kLevelNames[static_cast<std::size_t>(action.level)],
                     kMoveNames[static_cast<std::size_t>(action.move)],
                     action.device == Device::other ? kElsewhere : "");
}

bool is_hop(const Action& action) {
  return action.move != Move::encode && action.move != Move::decode;
}

// ---------------------------------------------------------------------------------------------
// The tree

using Chain = std::vector<Action>;
using Chains = std::vector<Chain>;

/// Every one of the first, followed by every one of the second.
Chains operator*(const Chains& first, const Chains& second) {
  Chains result;
  for (const Chain& a : first) {
    for (const Chain& b : second) {
      result.push_back(a);
      result.back().insert(result.back().end(), b.begin(), b.end());
    }
  }
  return result;
}

Chains operator|(Chains first, const Chains& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

enum class Family { scatter, root };
constexpr Family kFamilies[] = {Family::scatter, Family::root};

/// Follows the recursion of the paper, whose names for the subtrees are T1 to T5.
class Tree {
 public:
  explicit Tree(std::uint32_t devices) {
    for (const Device device : {Device::own, Device::other}) {
      if (static_cast<std::uint32_t>(device) >= devices) break;
      encode_.push_back({{Move::encode, Level::all, device}});
      decode_.push_back({{Move::decode, Level::all, device}});
    }
  }

  Chains options() const { return flat() | hierarchical(); }

 private:
  static Chains hop(Move move, Level level) { return {{{move, level}}}; }
  static Chains first(Level level, Family family) {
    return hop(family == Family::scatter ? Move::reduce_scatter : Move::reduce, level);
  }
  static Chains first_encoded(Level level, Family family) {
    return hop(family == Family::scatter ? Move::all_to_all : Move::gather, level);
  }
  static Chains second(Level level, Family family) {
    return hop(family == Family::scatter ? Move::all_gather : Move::broadcast, level);
  }

  /// The last hop, of numbers. (T1)
  Chains last(Level level, Family family) const {
    const Chains hop = second(level, family);
    return hop | encode_ * hop * decode_;
  }
  /// The last hop, of messages. (T2)
  Chains last_encoded(Level level, Family family) const {
    return second(level, family) * decode_ | decode_ * last(level, family);
  }
  /// From the second hop between hosts on, of numbers. (T5)
  Chains spread(Family between, Family inside) const {
    const Chains hop = second(Level::between, between);
    return hop * last(Level::inside, inside) | encode_ * hop * last_encoded(Level::inside, inside);
  }
  /// From between the hosts on, of numbers. (T3)
  Chains across(Family inside) const {
    Chains result = hop(Move::all_reduce, Level::between) * last(Level::inside, inside);
    for (const Family each : kFamilies) {
      result = result | first(Level::between, each) * spread(each, inside);
    }
    return result;
  }
  /// From between the hosts on, of messages. (T4)
  Chains across_encoded(Family inside) const {
    const Chains end = last_encoded(Level::inside, inside);
    Chains result = hop(Move::all_gather, Level::between) * end;
    for (const Family each : kFamilies) {
      result = result | first_encoded(Level::between, each) *
                            (second(Level::between, each) * end | decode_ * spread(each, inside));
    }
    return result;
  }
  Chains flat() const {
    Chains result = hop(Move::all_reduce, Level::all);
    for (const Family each : kFamilies) {
      result = result | first(Level::all, each) * last(Level::all, each);
    }
    result = result | encode_ * hop(Move::all_gather, Level::all) * decode_;
    for (const Family each : kFamilies) {
      result = result | encode_ * first_encoded(Level::all, each) * last_encoded(Level::all, each);
    }
    return result;
  }
  Chains hierarchical() const {
    Chains result;
    for (const Family each : kFamilies) {
      const Chains from_numbers = across(each) | encode_ * across_encoded(each);
      result = result | first(Level::inside, each) * from_numbers |
               encode_ * first_encoded(Level::inside, each) *
                   (decode_ * from_numbers | across_encoded(each));
    }
    return result;
  }

  Chains encode_, decode_;
};

// ---------------------------------------------------------------------------------------------
// Texts

std::optional<Action> parse_action(std::string_view word) {
  Action action{Move::encode};
  for (std::size_t level = 1; level < kLevels; ++level) {
    if (!word.starts_with(kLevelNames[level])) continue;
    action.level = static_cast<Level>(level);
    word.remove_prefix(std::string_view(kLevelNames[level]).size());
  }
  if (word.ends_with(kElsewhere)) {
    action.device = Device::other;
    word.remove_suffix(kElsewhere.size());
  }
  const auto found = std::ranges::find(kMoveNames, word);
  if (found == kMoveNames.end()) return std::nullopt;
  action.move = static_cast<Move>(found - kMoveNames.begin());
  return action;
}

bool starts_with(std::span<const Action> whole, std::span<const Action> start) {
  return whole.size() >= start.size() && std::ranges::equal(whole.first(start.size()), start);
}

/// What may follow actions that some option begins with.
std::set<std::string> next_words(const std::vector<Option>& options,
                                 std::span<const Action> start) {
  std::set<std::string> words;
  for (const Option& option : options) {
    const auto& actions = option.actions();
    if (actions.size() > start.size() && starts_with(actions, start)) {
      words.insert(text_of(actions[start.size()]));
    }
  }
  return words;
}

[[noreturn]] void refuse(std::string_view text, std::string_view word, const std::string& what) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("'{}' is no way to exchange a tensor: {}{}", text,
                  word.empty() ? "at its end" : fmt::format("instead of '{}'", word), what));
}

/// A second device is offered to those who ask for one.
const std::vector<Option>& options_like(std::string_view text) {
  static const std::vector<Option> kOneDevice = all_options(1);
  static const std::vector<Option> kTwoDevices = all_options(2);
  return text.find(kElsewhere) == std::string_view::npos ? kOneDevice : kTwoDevices;
}

Hop hop_of(const Action& action, bool paired) {
  using Kind = Hop::Kind;
  switch (action.move) {
    case Move::all_reduce:
      return {Kind::around, action.level};
    case Move::reduce_scatter:
    case Move::all_to_all:
      return {Kind::to_owners, action.level};
    case Move::reduce:
      return {Kind::up, action.level};
    case Move::gather:
      return {Kind::to_root, action.level};
    case Move::all_gather:
      return {paired ? Kind::from_owners : Kind::to_all, action.level};
    default:
      return {Kind::from_root, action.level};
  }
}

}  // namespace

Option Option::parse(std::string_view text) {
  const std::vector<Option>& options = options_like(text);
  std::vector<Action> actions;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('-', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::set<std::string> known = next_words(options, actions);
    if (!known.contains(std::string(word))) {
      if (known.empty()) refuse(text, word, " nothing may follow");
      refuse(text, word, fmt::format(" there may be {}", fmt::join(known, ", ")));
    }
    actions.push_back(*parse_action(word));
    at = end + 1;
  }
  const std::set<std::string> missing = next_words(options, actions);
  if (!missing.empty())
    refuse(text, "", fmt::format(" there must be {}", fmt::join(missing, ", ")));
  return Option(std::move(actions));
}

std::string Option::text() const {
  std::string text;
  for (const Action& action : actions_) text += (text.empty() ? "" : "-") + text_of(action);
  return text;
}

std::vector<Leg> Option::legs() const {
  std::vector<Leg> legs;
  std::array<bool, kLevels> begun{};  // by a hop whose other half is to come
  bool encoded = false;
  for (const Action& action : actions_) {
    if (action.move == Move::decode) encoded = false;
    if (action.move == Move::encode) {
      encoded = true;
      legs.push_back({});
    }
    if (!is_hop(action)) continue;
    if (!encoded) legs.push_back({.exact = true, .hops = {}});
    bool& paired = begun[static_cast<std::size_t>(action.level)];
    const Hop hop = hop_of(action, paired);
    paired = hop.moves() || hop.kind == Hop::Kind::up;
    legs.back().hops.push_back(hop);
  }
  return legs;
}

bool Option::has_codec() const noexcept { return encodings() > 0; }

bool Option::has_levels() const noexcept {
  return std::ranges::any_of(
      actions_, [](const Action& action) { return is_hop(action) && action.level != Level::all; });
}

bool Option::needs_second_device() const noexcept {
  return std::ranges::any_of(actions_,
                             [](const Action& each) { return each.device == Device::other; });
}

std::uint32_t Option::encodings() const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count(actions_, Move::encode, &Action::move));
}

std::vector<Option> all_options(std::uint32_t devices) {
  std::vector<Option> options;
  for (Chain& chain : Tree(devices).options()) options.emplace_back(std::move(chain));
  return options;
}

}  // namespace gradwire
