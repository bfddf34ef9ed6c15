#include "plan/costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "gradwire/error.h"
#include "plan/json_fields.h"

namespace gradwire {
namespace {

using Kind = LocatedJson::Kind;
using Points = std::vector<std::pair<std::size_t, double>>;

constexpr std::uint64_t kCostsVersion = 1;  // of the format

LinkCost read_link(const LocatedJson& costs, std::string_view key) {
  const LocatedJson& link = member(costs, key, "a file of costs");
  check_keys(link, "a link",
             {"seconds", "seconds_per_byte", "cpu_seconds", "cpu_seconds_per_byte"});
  return {number_member(link, "seconds", "a link"),
          number_member(link, "seconds_per_byte", "a link"),
          number_member(link, "cpu_seconds", "a link"),
          number_member(link, "cpu_seconds_per_byte", "a link")};
}

std::pair<std::size_t, double> read_point(const LocatedJson& point) {
  require(point, Kind::list, "a point is a list of elements and seconds: expected one");
  const bool pair = point.list.size() == 2 && point.list[0].kind == Kind::count &&
                    (point.list[1].kind == Kind::count || point.list[1].kind == Kind::number);
  if (!pair) refuse_at(point.place, "a point is two numbers, [elements, seconds]: give both");
  const LocatedJson& seconds = point.list[1];
  if (seconds.number < 0) {
    refuse_at(point.place, fmt::format("{} seconds: they cannot be less than 0", seconds.text));
  }
  return {point.list[0].count, seconds.number};
}

CostTable read_table(const LocatedJson& codec, std::string_view key) {
  const LocatedJson& table = member(codec, key, "a codec");
  require(table, Kind::list, fmt::format("'{}' is a list of points: expected one", key));
  if (table.list.empty()) {
    refuse_at(table.place, fmt::format("'{}' is empty: give at least one point", key));
  }
  Points points;
  for (const LocatedJson& each : table.list) {
    const auto point = read_point(each);
    const std::size_t before = points.empty() ? 0 : points.back().first;
    if (point.first <= before) {
      refuse_at(each.place,
                fmt::format("a point for {} elements behind {}: give at least 1, and ascending",
                            point.first, before));
    }
    points.push_back(point);
  }
  return CostTable(std::move(points));
}

MeasuredCodec read_codec(const LocatedJson& codec) {
  check_keys(
      codec, "a codec",
      {"encode", "decode", "preparation", "bytes_per_element", "other_encode", "other_decode"});
  const auto optional_table = [&](std::string_view key) {
    return codec.find(key) == nullptr ? CostTable() : read_table(codec, key);
  };
  // On a second device a codec does both, or nothing.
  for (const auto& [one, both] :
       {std::pair("other_encode", "other_decode"), std::pair("other_decode", "other_encode")}) {
    if (codec.find(one) != nullptr) member(codec, both, fmt::format("a codec with '{}'", one));
  }
  return {.encode = read_table(codec, "encode"),
          .decode = read_table(codec, "decode"),
          .preparation = optional_table("preparation"),
          .bytes_per_element = number_member(codec, "bytes_per_element", "a codec"),
          .other_encode = optional_table("other_encode"),
          .other_decode = optional_table("other_decode")};
}

std::string spec_of(const std::string& text, const std::string& place) {
  try {
    return Codec::parse(text).spec();
  } catch (const Error& error) {
    refuse_at(place, error.what());
  }
}

std::map<std::string, MeasuredCodec> read_codecs(const LocatedJson& object) {
  require(object, Kind::object, "'codecs' is an object in braces: expected one");
  if (object.members.empty()) refuse_at(object.place, "'codecs' is empty: give at least one");
  std::map<std::string, MeasuredCodec> codecs;
  for (const auto& [text, value] : object.members) {
    if (!codecs.emplace(spec_of(text, value.place), read_codec(value)).second) {
      refuse_at(value.place, fmt::format("'{}' was there before: leave one", text));
    }
  }
  return codecs;
}

std::string text_of(const LinkCost& link) {
  return fmt::format(
      "{{\"seconds\": {}, \"seconds_per_byte\": {}, \"cpu_seconds\": {}, "
      "\"cpu_seconds_per_byte\": {}}}",
      link.seconds, link.seconds_per_byte, link.cpu_seconds, link.cpu_seconds_per_byte);
}

std::string text_of(const CostTable& table) {
  std::vector<std::string> points;
  for (const auto& [elements, seconds] : table.points()) {
    points.push_back(fmt::format("[{}, {}]", elements, seconds));
  }
  return fmt::format("[{}]", fmt::join(points, ", "));
}

std::string text_of(const MeasuredCodec& codec) {
  const auto optional_table = [](const char* key, const CostTable& table) {
    if (table.points().empty()) return std::string();
    return fmt::format("      \"{}\": {},\n", key, text_of(table));
  };
  return fmt::format(
      "{{\n      \"encode\": {},\n      \"decode\": {},\n{}{}{}      \"bytes_per_element\": {}\n   "
      " }}",
      text_of(codec.encode), text_of(codec.decode),
      optional_table("preparation", codec.preparation),
      optional_table("other_encode", codec.other_encode),
      optional_table("other_decode", codec.other_decode), codec.bytes_per_element);
}

}  // namespace

CostTable::CostTable(std::vector<std::pair<std::size_t, double>> points)
    : points_(std::move(points)) {
  double least = 0;
  for (auto& [elements, seconds] : points_) least = seconds = std::max(seconds, least);
}

double CostTable::at(std::size_t elements) const noexcept {
  if (points_.empty()) return 0;
  const auto after = std::ranges::upper_bound(points_, elements, {}, &Points::value_type::first);
  if (after == points_.begin()) return after->second;
  const auto& [before, seconds] = *(after - 1);
  const auto number = [](std::size_t count) { return static_cast<double>(count); };
  if (after == points_.end()) return seconds * (number(elements) / number(before));
  const double share = number(elements - before) / number(after->first - before);
  return seconds + share * (after->second - seconds);
}

const MeasuredCodec& Costs::codec(const Codec& codec) const {
  const auto found = codecs.find(codec.spec());
  if (found != codecs.end()) return found->second;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("what {} costs is not among the costs {}: measure it, by gradwire "
                          "calibrate --codec {}",
                          codec.spec(), source, codec.spec()));
}

bool Costs::has_other_device() const noexcept {
  return std::ranges::any_of(codecs,
                             [](const auto& each) { return each.second.has_other_device(); });
}

Costs Costs::without_other_device() const {
  Costs costs = *this;
  for (auto& [spec, codec] : costs.codecs) codec.other_encode = codec.other_decode = CostTable();
  return costs;
}

Costs parse_costs(std::string_view text) {
  const LocatedJson root = parse_located_json(text);
  constexpr std::string_view kWhat = "a file of costs";
  check_keys(root, kWhat,
             {"gradwire_costs", "source", "host", "isa", "version", "inside", "between", "delay",
              "threads", "cores", "interference", "codecs"});
  const LocatedJson& version = member(root, "gradwire_costs", kWhat);
  require(version, Kind::count, "'gradwire_costs' is the format's version: expected 1");
  if (version.count != kCostsVersion) {
    refuse_at(version.place, fmt::format("these costs have version {}; only {} is known",
                                         version.count, kCostsVersion));
  }
  const LocatedJson& threads = member(root, "threads", kWhat);
  require(threads, Kind::count, "'threads' is a whole number from 1 on: expected one");
  if (threads.count == 0) refuse_at(threads.place, "'threads' is 0: give at least 1");
  const double cores = number_member(root, "cores", kWhat);
  if (cores == 0) refuse_at(root.find("cores")->place, "'cores' is 0: give more, as 0.5");
  const double interference = number_member(root, "interference", kWhat);
  if (interference < 1) {
    refuse_at(root.find("interference")->place,
              fmt::format("'interference' is {}: exchanges do not speed up backward, give at "
                          "least 1",
                          interference));
  }
  return {.source = text_member(root, "source", kWhat),
          .host = text_member(root, "host", kWhat),
          .isa = text_member(root, "isa", kWhat),
          .version = text_member(root, "version", kWhat),
          .inside = read_link(root, "inside"),
          .between = read_link(root, "between"),
          .delay = number_member(root, "delay", kWhat),
          .threads = threads.count,
          .cores = cores,
          .interference = interference,
          .codecs = read_codecs(member(root, "codecs", kWhat))};
}

std::string text_of(const Costs& costs) {
  std::vector<std::string> codecs;
  for (const auto& [spec, codec] : costs.codecs) {
    codecs.push_back(fmt::format("    {}: {}", quoted(spec), text_of(codec)));
  }
  return fmt::format(
      "{{\n"
      "  \"gradwire_costs\": {},\n"
      "  \"source\": {},\n"
      "  \"host\": {},\n"
      "  \"isa\": {},\n"
      "  \"version\": {},\n"
      "  \"inside\": {},\n"
      "  \"between\": {},\n"
      "  \"delay\": {},\n"
      "  \"threads\": {},\n"
      "  \"cores\": {},\n"
      "  \"interference\": {},\n"
      "  \"codecs\": {{\n{}\n  }}\n"
      "}}\n",
      kCostsVersion, quoted(costs.source), quoted(costs.host), quoted(costs.isa),
      quoted(costs.version), text_of(costs.inside), text_of(costs.between), costs.delay,
      costs.threads, costs.cores, costs.interference, fmt::join(codecs, ",\n"));
}

}  // namespace gradwire
