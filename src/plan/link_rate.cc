#include "plan/link_rate.h"

#include <fmt/format.h>

#include <charconv>

#include "gradwire/error.h"

namespace gradwire {
namespace {

constexpr double kSlowest = 8e3;
constexpr double kFastest = 1e12;

struct Unit {
  std::string_view suffix;
  double bits;
};

constexpr Unit kUnits[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};

[[noreturn]] void refuse(std::string_view text) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not a link's rate; write a number with kbit, mbit or gbit, from "
                          "8kbit to 1000gbit, such as 100mbit, 1gbit or 2.5gbit, or write none",
                          text));
}

double unit_bits(std::string_view text, std::string_view suffix) {
  for (const Unit& unit : kUnits) {
    if (unit.suffix == suffix) return unit.bits;
  }
  refuse(text);
}

}  // namespace

LinkRate parse_link_rate(std::string_view text) {
  if (text == "none") return {};
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (error != std::errc()) refuse(text);
  const double bits =
      number * unit_bits(text, std::string_view(end, static_cast<std::size_t>(last - end)));
  if (!(bits >= kSlowest && bits <= kFastest)) refuse(text);
  return {static_cast<std::uint64_t>(bits)};
}

}  // namespace gradwire
