#include "gradwire/way.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "codec/spec.h"
#include "collective/algorithms.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr float kMostMomentum = 0.99999994F;  // the largest below 1
constexpr std::uint32_t kMostReuse = 1'000'000;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::invalid_spec, why); }

/// Parts between `+`, but for those of numbers such as 1e+01.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool in_number = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
    if (text[i] != '+' || in_number) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

void check_momentum(const Feedback& feedback, std::string_view text) {
  if (!(feedback.momentum >= 0 && feedback.momentum <= kMostMomentum)) {
    refuse(fmt::format("the momentum {} in '{}': take 0 to below 1", feedback.momentum, text));
  }
  if ((feedback.nesterov || feedback.masking) && feedback.momentum == 0) {
    refuse(fmt::format("'{}' has nesterov or masking, which need momentum", text));
  }
  if (feedback.reuse == 0) refuse(fmt::format("reuse=0 in '{}': take 1 or more", text));
}

Feedback parse_feedback(std::string_view part) {
  constexpr std::string_view kSwitch[] = {"0", "1"};
  SpecReader reader(part, "way");
  Feedback feedback;
  feedback.momentum = reader.number("momentum", 0, 0, kMostMomentum);
  feedback.nesterov = reader.choice("nesterov", 0, kSwitch) == 1;
  feedback.masking = reader.choice("masking", 0, kSwitch) == 1;
  feedback.reuse = reader.integer("reuse", 1, 1, kMostReuse);
  reader.finish();
  check_momentum(feedback, part);
  return feedback;
}

std::string text_of(const Feedback& feedback) {
  const Feedback usual;
  std::string keys;
  const auto add = [&](bool differs, const std::string& key) {
    if (differs) keys += (keys.empty() ? ":" : ",") + key;
  };
  add(feedback.momentum != usual.momentum, fmt::format("momentum={}", feedback.momentum));
  add(feedback.nesterov, "nesterov=1");
  add(feedback.masking, "masking=1");
  add(feedback.reuse != usual.reuse, fmt::format("reuse={}", feedback.reuse));
  return "+feedback" + keys;
}

/// `parse` gives the codec again.
std::string short_spec(const Codec& codec) {
  const std::string_view name = codec.name();
  const auto keys_of = [&](const std::string& spec) {
    return spec.substr(std::min(spec.size(), name.size() + 1)) + ",";
  };
  const std::string spec = codec.spec();
  const std::string keys = keys_of(spec);
  const std::string defaults = "," + keys_of(Codec::parse(name).spec());
  std::string kept;
  for (std::size_t begin = 0, end = 0; begin < keys.size(); begin = end + 1) {
    end = keys.find(',', begin);
    const std::string key = keys.substr(begin, end - begin);
    if (defaults.find("," + key + ",") != std::string::npos) continue;
    kept += (kept.empty() ? ":" : ",") + key;
  }
  const std::string text = std::string(name) + kept;
  return Codec::parse(text) == codec ? text : spec;  // a key left out may have stood for another
}

std::string behind_codec(const Way& way) {
  return (way.feedback ? text_of(*way.feedback) : "") +
         (way.route.empty() ? "" : "+route:" + way.route);
}

/// Of a way's first part; errors show the whole text.
Codec parse_codec(std::string_view part, std::string_view text) {
  if (part == text) return Codec::parse(text);
  if (part.empty()) refuse(fmt::format("there is no codec before the + of '{}'", text));
  try {
    return Codec::parse(part);
  } catch (const Error& error) {
    refuse(fmt::format("the codec of '{}': {}", text, error.what()));
  }
}

void check_route(std::string_view route, std::string_view text) {
  try {
    static_cast<void>(find_algorithm(route));
  } catch (const Error& error) {
    refuse(fmt::format("the route in '{}': {}", text, error.what()));
  }
}

}  // namespace

Way Way::parse(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) refuse("a way has a NUL byte: leave it out");
  const std::vector<std::string_view> parts = parts_of(text);
  Way way;
  way.codec = parse_codec(parts.front(), text);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::string_view name = parts[i].substr(0, parts[i].find(':'));
    const bool again = name == "feedback" ? way.feedback.has_value() : !way.route.empty();
    if (name != "feedback" && name != "route") {
      refuse(
          fmt::format("'{}' in '{}': behind a codec comes feedback, as in 'sign+feedback', or a "
                      "route, as in 'grid+route:sra'",
                      parts[i], text));
    }
    if (again) refuse(fmt::format("'{}' is given twice in '{}'", name, text));
    if (name == "feedback") {
      way.feedback = parse_feedback(parts[i]);
    } else {
      way.route = parts[i].substr(std::min(parts[i].size(), name.size() + 1));
      check_route(way.route, text);
    }
  }
  return way;
}

std::string Way::text() const { return codec.spec() + behind_codec(*this); }

std::string Way::short_text() const { return short_spec(codec) + behind_codec(*this); }

void Way::check() const {
  if (feedback) check_momentum(*feedback, text());
  if (!route.empty()) check_route(route, text());
}

}  // namespace gradwire
