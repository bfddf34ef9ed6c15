#include "plan/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "gradwire/error.h"
#include "plan/link_rate.h"
#include "terminal/progress.h"

namespace gradwire::cli {
namespace {

constexpr double kPointsPerDecade = 10;
constexpr std::size_t kMostPoints = 200;
constexpr double kNoticed = 0.01;  // of the gradients

/// A figure that can be varied.
struct Key {
  const char* name;
  double least, most;
  bool whole;
};

constexpr Key kKeys[] = {{"link", 8e3, 1e12, false},
                         {"hosts", 1, kMostHosts, true},
                         {"ranks-per-host", 1, kMostRanksPerHost, true},
                         {"step", 1e-3, 1e9, false}};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("'{}' is no sweep: {}; write KEY=FROM:TO or KEY=FROM:TO:POINTS with link, "
                  "hosts, ranks-per-host or step, as in link=100mbit:100gbit or hosts=2:64",
                  text, why));
}

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || end != last || !std::isfinite(number)) return std::nullopt;
  return number;
}

double value_in(const std::string& text, const Key& key, const std::string& sweep) {
  std::optional<double> value = number_in(text);
  if (std::string_view(key.name) == "link") {
    const LinkRate rate = parse_link_rate(text);
    if (!rate.limited()) refuse(sweep, "it needs rates at both ends");
    value = static_cast<double>(rate.bits_per_second);
  }
  if (!value || *value < key.least || *value > key.most ||
      (key.whole && *value != std::floor(*value))) {
    refuse(sweep, fmt::format("'{}' must be {} from {} to {}", text,
                              key.whole ? "a whole number" : "a number", key.least, key.most));
  }
  return *value;
}

/// To two digits.
double rounded(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / unit) * unit;
}

/// Ten for each power of ten; of what is counted, doublings.
std::size_t usual_points(const Key& key, double from, double to) {
  const double per_point = key.whole ? 2 : std::pow(10, 1 / kPointsPerDecade);
  const double points = std::ceil(std::log(to / from) / std::log(per_point) - 1e-9) + 1;
  return static_cast<std::size_t>(std::min<double>(points, kMostPoints));
}

std::vector<double> series(const Key& key, double from, double to, std::size_t points) {
  std::vector<double> values{from};
  for (std::size_t i = 1; i + 1 < points; ++i) {
    const double along = static_cast<double>(i) / static_cast<double>(points - 1);
    const double value = from * std::pow(to / from, along);
    values.push_back(std::clamp(key.whole ? std::round(value) : rounded(value), from, to));
  }
  values.push_back(to);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

/// Doublings, and the end.
std::vector<double> doublings(double from, double to) {
  std::vector<double> values;
  for (double value = from; value < to; value *= 2) values.push_back(value);
  values.push_back(to);
  return values;
}

PlanningInput at_point(const PlanningInput& input, const Sweep& sweep, double value) {
  PlanningInput point = input;
  const auto count = static_cast<std::uint32_t>(value);
  if (sweep.key == "link") point.link = sweep.text_of(value);
  if (sweep.key == "hosts") point.cluster.hosts = count;
  if (sweep.key == "ranks-per-host") point.cluster.ranks_per_host = count;
  if (sweep.key == "step") point.step_milliseconds = value;
  return point;
}

std::vector<CodecShare> shares_of(const Workload& workload, const Selection& selection) {
  std::map<std::string, CodecShare> by_codec;
  double all = 0;
  for (std::size_t i = 0; i < selection.choices.size(); ++i) {
    Way way = selection.choices[i].way();
    way.route.clear();
    const auto elements = static_cast<double>(workload.tensors[i].elements);
    CodecShare& share = by_codec[way.short_text()];
    ++share.tensors;
    share.of_bytes += elements;
    all += elements;
  }
  std::vector<CodecShare> shares;
  for (auto& [codec, share] : by_codec) {
    shares.push_back({codec, share.tensors, share.of_bytes / all});
  }
  std::ranges::stable_partition(shares,
                                [](const CodecShare& each) { return each.codec == "none"; });
  return shares;
}

}  // namespace

std::string Sweep::text_of(double value) const {
  if (key != "link") return fmt::format("{:.6g}", value);
  if (value >= 1e9) return fmt::format("{:.6g}gbit", value / 1e9);
  return value >= 1e6 ? fmt::format("{:.6g}mbit", value / 1e6)
                      : fmt::format("{:.6g}kbit", value / 1e3);
}

Sweep parse_sweep(const std::string& text) {
  const std::size_t equals = text.find('='), colon = text.find(':', equals);
  if (equals == std::string::npos || colon == std::string::npos) refuse(text, "a part is missing");
  const std::string name = text.substr(0, equals);
  const auto* const key =
      std::ranges::find_if(kKeys, [&](const Key& each) { return name == each.name; });
  if (key == std::end(kKeys)) refuse(text, fmt::format("'{}' cannot be varied", name));
  const std::size_t second = text.find(':', colon + 1);
  const double from = value_in(text.substr(equals + 1, colon - equals - 1), *key, text);
  const double to = value_in(text.substr(colon + 1, second - colon - 1), *key, text);
  if (!(from < to)) refuse(text, "its first value must be less than its last");
  if (second == std::string::npos) {
    return {name, key->whole ? doublings(from, to)
                             : series(*key, from, to, usual_points(*key, from, to))};
  }
  const std::string asked = text.substr(second + 1);
  const std::optional<double> points = number_in(asked);
  if (!points || *points < 2 || *points > kMostPoints || *points != std::floor(*points)) {
    refuse(text, fmt::format("'{}' must be a number of points from 2 to {}", asked, kMostPoints));
  }
  return {name, series(*key, from, to, static_cast<std::size_t>(*points))};
}

std::vector<SweepPoint> plan_points(const PlanningInput& input, const Sweep& sweep) {
  if (sweep.key == "step" && input.model.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "only steps of a model that gradwire knows can be varied: give --model, or vary "
                "something else");
  }
  const Workload workload = workload_of(input);
  std::vector<SweepPoint> points;
  Progress progress(sweep.values.size());
  for (const double value : sweep.values) {
    progress.begin_step(sweep.text_of(value));
    const PlanningInput point = at_point(input, sweep, value);
    const Planned planned = make_plan(point, sweep.key == "step" ? workload_of(point) : workload);
    points.push_back({value, planned.selection.step_seconds, planned.workload.compute_seconds(),
                      planned.baselines, shares_of(planned.workload, planned.selection)});
  }
  return points;
}

std::vector<CodecRange> ranges_of(const std::vector<SweepPoint>& points) {
  std::map<std::string, CodecRange> ranges;
  for (const SweepPoint& point : points) {
    for (const CodecShare& share : point.codecs) {
      if (share.codec == "none" || share.of_bytes < kNoticed) continue;
      CodecRange& range = ranges.try_emplace(share.codec, share.codec, point.value).first->second;
      range.to = point.value;
    }
  }
  std::vector<CodecRange> result;
  for (auto& [codec, range] : ranges) result.push_back(range);
  return result;
}

}  // namespace gradwire::cli
