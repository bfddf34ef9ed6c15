// Numbers to bytes and back.
//
// A codec is a small immutable value made from a text, the same text in every language:
//
//   gradwire::Codec codec = gradwire::Codec::parse("uniform:bits=4,bucket=128");
//   std::vector<std::byte> bytes(codec.max_encoded_bytes(x.count));
//   gradwire::Encoded done = codec.encode(x, {.random = {.seed = 7, .step = step}}, bytes);
//   codec.decode_add(std::span(bytes).first(done.bytes), x.dtype, sum);
//
// What `encode` writes is a bare payload. It carries no length, checksum or codec name: those
// belong to a frame (`frame.h`), which is what goes over a wire or into a file.
//
// Threads: a Codec may be used by any number of threads at once. Nothing here allocates except
// `parse`, `spec` and the functions that list codecs. Encoding and decoding use up to 160 KiB of
// stack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/error.h"
#include "gradwire/random.h"
#include "gradwire/tensor.h"

namespace gradwire {

struct CodecKind;  // one entry of the registry, src/codec/registry.h

/// What may be relied upon, whatever the numbers.
struct Traits {
  bool lossless = false;     ///< decodes to the very bits that were encoded (same dtype)
  bool unbiased = false;     ///< the mean of the decoded value over seeds is the encoded value
  bool fixed_size = false;   ///< the encoded size depends on the count alone
  bool keeps_zeros = false;  ///< an exact zero decodes to an exact zero
  bool sparse = false;       ///< few numbers are sent, and all others decode to zero
};

/// What an encoding depends on besides the numbers.
struct EncodeOptions {
  RandomKey random{};
  /// Where the numbers stand in their tensor, so that slices of it draw the numbers the whole would
  /// draw. A multiple of `kSliceAlignment`.
  std::uint64_t first_element = 0;
  /// How often this tensor was encoded before. A codec that sends one side of the numbers at a time
  /// (`topk:values=mean`) sends the positive ones in even turns and the negative ones in odd turns.
  std::uint64_t turn = 0;
};

/// Slices of a tensor start at multiples of this many elements.
inline constexpr std::size_t kSliceAlignment = 128;

struct Encoded {
  Status status = Status::ok;
  std::size_t bytes = 0;  ///< written; 0 unless `status` is ok
};

class Codec {
 public:
  /// A codec's settings as they travel in a segment's header. Opaque outside src/codec.
  using Params = std::array<std::byte, 14>;

  /// Parses `name` or `name:key=value,key=value`. Keys left out take their defaults.
  /// Throws `Error(invalid_spec)` that lists what exists when a name, key or value is unknown.
  static Codec parse(std::string_view spec);

  /// The codec's text with every key written out; `parse(spec())` gives an equal codec.
  std::string spec() const;
  std::string_view name() const noexcept;
  Traits traits() const noexcept;

  /// A codec for slices of `layer`: statistics that must be taken over a whole layer (the `grid`
  /// codec's rms and, with `nmse=`, its step; the `topk` codec's threshold) are taken here, once.
  /// Codecs that need none, or have been fitted, return themselves. Encoding with an unfitted codec
  /// takes the statistics from the slice it is given. To use a `topk` threshold for several steps,
  /// keep the fitted codec.
  Codec fit(ConstTensorView layer) const noexcept { return fit(std::span(&layer, 1)); }
  /// The same for a layer that lies in several places.
  Codec fit(std::span<const ConstTensorView> layer) const noexcept;

  /// The codec for sums of what this one encodes. A sparse codec's is denser, as sums of several
  /// ranks' numbers have more that count; a sum that would be half full travels whole. Of all
  /// others it is the codec itself.
  Codec for_sums() const noexcept;

  /// No encoding of `count` elements is larger, whatever the numbers and the dtype.
  std::size_t max_encoded_bytes(std::size_t count) const noexcept;
  /// What an encoding is likely to take, as far as that can be told without the numbers.
  std::size_t expected_bytes(std::size_t count) const noexcept;

  /// Encodes `x` into the front of `out`, which has at least `max_encoded_bytes(x.count)` bytes;
  /// what lies behind the encoded bytes may be overwritten.
  Encoded encode(ConstTensorView x, const EncodeOptions& options,
                 std::span<std::byte> out) const noexcept;

  /// Decodes a payload of `out.count` elements that were encoded from `source` numbers. The bytes
  /// may come from anywhere: nothing is read beyond them, nothing written beyond `out`, and what
  /// does not decode is reported. After an error `out` holds unspecified numbers. (A frame's
  /// checksum is verified before anything is written.)
  Status decode(std::span<const std::byte> payload, Dtype source, TensorView out) const noexcept;

  /// Like `decode`, but adds to `out`: the reduction step. Sums are formed in fp32 and rounded
  /// once.
  Status decode_add(std::span<const std::byte> payload, Dtype source,
                    TensorView out) const noexcept;

  /// Same kind, same settings.
  friend bool operator==(const Codec& a, const Codec& b) noexcept {
    return a.kind_ == b.kind_ && a.params_ == b.params_;
  }

 private:
  friend struct CodecAccess;  // src/codec: what the engine asks of codecs beyond this
  Codec(const CodecKind* kind, const Params& params) noexcept : kind_(kind), params_(params) {}

  const CodecKind* kind_;
  Params params_;
};

/// One line per codec: its spec with all keys at their defaults, for help texts.
std::vector<std::string> list_codecs();

}  // namespace gradwire
