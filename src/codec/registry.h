// The list of codecs. A codec is one file that defines a `CodecKind`, plus one line in registry.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "codec/each_sent.h"
#include "codec/spec.h"
#include "gradwire/codec.h"
#include "tensor/into.h"

namespace gradwire {

/// What fitting, encoding and decoding a layer take, on one core of an AMD EPYC with AVX2.
/// `gradwire bench codec` and `gradwire bench select` measure it. The default is what memory takes.
struct CodecCost {
  double microseconds = 1;   ///< whatever its size
  double nanoseconds = 0.5;  ///< for each element
};

/// One kind of codec: functions over its settings. Settings are plain structs of at most 14 bytes
/// that `Codec::Params` carries; `pack` and `unpack` convert. All functions but `parse` and
/// `format` are called on hot paths: they neither allocate nor throw.
struct CodecKind {
  std::uint8_t id;  ///< in segment headers; never reused
  std::string_view name;
  bool elementwise = false;  ///< encoding a slice gives that slice of the whole's encoding

  Codec::Params (*parse)(SpecReader& spec);
  std::string (*format)(const Codec::Params& params);
  /// Whether settings that came in a header could have been made by `parse` or `fit`.
  bool (*valid)(const Codec::Params& params) noexcept;
  Traits (*traits)(const Codec::Params& params) noexcept;
  /// `notes` are `note_count` of a layer that lies in one place, or none.
  Codec::Params (*fit)(const Codec::Params& params, std::span<const ConstTensorView> layer,
                       std::span<double> notes) noexcept;
  std::size_t (*note_count)(std::size_t count) noexcept = nullptr;  ///< null: never any

  Codec (*for_sums)(const Codec::Params& params) noexcept = nullptr;  ///< null: itself

  CodecCost cost{};
  CodecCost (*cost_of)(const Codec::Params& params) noexcept = nullptr;  ///< null: `cost`

  std::size_t (*max_bytes)(const Codec::Params& params, std::size_t count) noexcept;
  /// Null: as many as `max_bytes`.
  std::size_t (*expected_bytes)(const Codec::Params& params, std::size_t count) noexcept = nullptr;
  std::size_t (*encode)(const Codec::Params& params, ConstTensorView x,
                        const EncodeOptions& options, std::byte* out) noexcept;
  /// `encode` with what `fit` noted of the whole layer. Null: it takes no notes.
  std::size_t (*encode_noted)(const Codec::Params& params, ConstTensorView x,
                              const EncodeOptions& options, std::span<const double> notes,
                              std::byte* out) noexcept = nullptr;
  Status (*decode)(const Codec::Params& params, std::span<const std::byte> payload, Dtype source,
                   TensorView out, Into into) noexcept;
  /// Null unless sparse.
  Status (*each_sent)(const Codec::Params& params, std::span<const std::byte> payload, Dtype source,
                      std::size_t count, NumberSink sink) noexcept = nullptr;
};

/// A struct's last bytes may be padding, which does not travel.
template <typename Settings>
inline constexpr std::size_t kPackedBytes = std::min(sizeof(Settings), sizeof(Codec::Params));

template <typename Settings>
Codec::Params pack(const Settings& settings) noexcept {
  static_assert(std::is_trivially_copyable_v<Settings>);
  static_assert(sizeof(Settings) <= sizeof(Codec::Params) + alignof(Settings) - 1);
  Codec::Params params{};
  std::memcpy(params.data(), &settings, kPackedBytes<Settings>);
  return params;
}

template <typename Settings>
Settings unpack(const Codec::Params& params) noexcept {
  Settings settings{};
  std::memcpy(static_cast<void*>(&settings), params.data(), kPackedBytes<Settings>);
  return settings;
}

/// True when the bytes behind the settings are zero, as `pack` leaves them: every byte of a header
/// counts.
template <typename Settings>
bool rest_is_zero(const Codec::Params& params) noexcept {
  for (std::size_t i = kPackedBytes<Settings>; i < params.size(); ++i) {
    if (params[i] != std::byte{0}) return false;
  }
  return true;
}

/// For codecs that need nothing of the layer.
inline Codec::Params fit_nothing(const Codec::Params& params, std::span<const ConstTensorView>,
                                 std::span<double>) noexcept {
  return params;
}

extern const CodecKind kNone;
extern const CodecKind kFp16;
extern const CodecKind kBf16;
extern const CodecKind kUniform;
extern const CodecKind kExponential;
extern const CodecKind kSign;
extern const CodecKind kGrid;
extern const CodecKind kTopk;
extern const CodecKind kRandomk;

/// All kinds, in the order in which help texts list them.
std::span<const CodecKind* const> codec_kinds() noexcept;

/// Null when unknown.
const CodecKind* find_kind(std::uint8_t id) noexcept;

/// Builds codecs from segment headers, and takes them apart again.
struct CodecAccess {
  static Codec make(const CodecKind* kind, const Codec::Params& params) noexcept {
    return {kind, params};
  }
  static const CodecKind& kind(const Codec& codec) noexcept { return *codec.kind_; }
  static const Codec::Params& params(const Codec& codec) noexcept { return codec.params_; }
};

/// Whether `Codec::fit` looks at the numbers of a layer.
inline bool is_fitted(const Codec& codec) noexcept {
  return CodecAccess::kind(codec).fit != fit_nothing;
}

inline CodecCost cost_of(const Codec& codec) noexcept {
  const CodecKind& kind = CodecAccess::kind(codec);
  return kind.cost_of == nullptr ? kind.cost : kind.cost_of(CodecAccess::params(codec));
}

}  // namespace gradwire
