// Fitting that takes notes: what it saw of every number, encoding need not look at again. The bytes
// are the same with notes and without. The notes of a layer add up to the energy of its numbers,
// within a millionth of it, and are not finite where a number is not.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/codec.h"
#include "gradwire/frame.h"

namespace gradwire {

/// How many notes a codec takes of a layer; 0 for most.
std::size_t note_count(const Codec& codec, std::size_t count) noexcept;

/// `codec.fit(layer)`, which fills `notes`, of which there are `note_count(codec, layer.count)`.
Codec fit(const Codec& codec, ConstTensorView layer, std::span<double> notes) noexcept;

/// `codec.encode`, with the notes of the whole layer that `x` is a slice of and whose numbers have
/// not changed since, or with none.
Encoded encode(const Codec& codec, ConstTensorView x, const EncodeOptions& options,
               std::span<const double> notes, std::span<std::byte> out) noexcept;

struct NotedSegment : Segment {
  std::span<const double> notes{};
};

/// As for segments without notes.
Encoded encode_frame(std::span<const NotedSegment> segments, std::span<std::byte> out,
                     Seal seal = Seal::checksum) noexcept;

}  // namespace gradwire
