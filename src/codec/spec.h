// Texts of codecs and of what belongs to a way: `name` or `name:key=value,key=value`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire {

/// Reads one spec. A codec asks for each of its keys; `finish` then refuses what nobody asked for.
/// Every error is `Error(invalid_spec)` and lists what would have been right.
class SpecReader {
 public:
  /// `spec` must outlive the reader, and `kind`, which says in errors what it is a spec of. Throws
  /// when it is not of the form above.
  explicit SpecReader(std::string_view spec, std::string_view kind = "codec");

  std::string_view name() const noexcept { return name_; }
  bool has(std::string_view key) const noexcept;

  std::uint32_t integer(std::string_view key, std::uint32_t fallback, std::uint32_t low,
                        std::uint32_t high);
  float number(std::string_view key, float fallback, float low, float high);
  /// The index of the value in `values`.
  std::uint8_t choice(std::string_view key, std::uint8_t fallback,
                      std::span<const std::string_view> values);

  void finish() const;

 private:
  std::optional<std::string_view> find(std::string_view key);
  [[noreturn]] void refuse(std::string_view key, std::string_view value,
                           const std::string& allowed) const;

  std::string_view spec_;
  std::string_view kind_;
  std::string_view name_;
  std::vector<std::pair<std::string_view, std::string_view>> settings_;
  std::vector<std::string_view> known_;
};

inline constexpr std::string_view kRoundings[] = {"stochastic", "nearest", "dither"};
/// Indices into kRoundings; also what headers carry.
enum class Rounding : std::uint8_t { stochastic = 0, nearest = 1, dither = 2 };

inline constexpr std::string_view kMetas[] = {"bf16", "fp32"};
/// How wide the numbers that describe a bucket are; indices into kMetas.
enum class Meta : std::uint8_t { bf16 = 0, fp32 = 1 };

}  // namespace gradwire
