// `--json`: one object on stdout, fields in the order in which they were added.
#pragma once

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace gradwire::cli {

using Json = nlohmann::ordered_json;

/// To six significant digits: more would be noise in a measurement. Not-a-number and infinity
/// become null.
inline Json measured(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0.0;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(scale) ? std::round(value * scale) / scale : value;
}

inline void print_json(const Json& object) {
  const auto replace = Json::error_handler_t::replace;  // a file name need not be UTF-8
  std::fputs((object.dump(2, ' ', false, replace) + "\n").c_str(), stdout);
}

}  // namespace gradwire::cli
