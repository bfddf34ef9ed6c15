#include "terminal/byte_size.h"

#include <charconv>
#include <cstdint>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

struct Unit {
  std::string_view suffix;
  std::string_view name;
  std::uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"G", " GiB", std::uint64_t{1} << 30},
    {"M", " MiB", std::uint64_t{1} << 20},
    {"K", " KiB", std::uint64_t{1} << 10},
    {"", " B", 1},
};

[[noreturn]] void refuse(std::string_view text) {
  throw Error(ErrorCode::invalid_argument,
              "'" + std::string(text) + "' is not a size; write bytes, or 256K, 128M, 1G");
}

std::uint64_t unit_bytes(std::string_view text, std::string_view suffix) {
  for (const Unit& unit : kUnits) {
    if (unit.suffix == suffix) return unit.bytes;
  }
  refuse(text);
}

}  // namespace

std::size_t parse_byte_size(std::string_view text) {
  std::uint64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc()) refuse(text);
  const std::string_view suffix(end, static_cast<std::size_t>(last - end));
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(number, unit_bytes(text, suffix), &bytes)) refuse(text);
  return bytes;
}

std::string format_byte_size(std::size_t bytes) {
  const Unit* unit = &kUnits[0];
  while (unit->bytes > 1 && (bytes == 0 || bytes % unit->bytes != 0)) ++unit;
  return std::to_string(bytes / unit->bytes) + std::string(unit->name);
}

}  // namespace gradwire::cli
