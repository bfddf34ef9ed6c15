// What an operation on tensors of some sizes and ways does, whatever their numbers: how they are
// lined up, cut into pieces and exchanged. Made once, for all operations like it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "collective/lifetimes.h"
#include "collective/schedule.h"
#include "engine/layout.h"
#include "gradwire/codec.h"
#include "plan/resources.h"

namespace gradwire::engine {

inline constexpr std::size_t kMessageAlignment = 64;

/// The codec of messages that a schedule wants exact.
const Codec& exact_codec();

/// What one rank does by an algorithm.
struct Routine {
  Routine(const Algorithm& by, Collective collective, const Ranks& ranks, Rank me);
  const std::string algorithm;  // its name
  const Schedule schedule;
  const Lifetimes lifetimes;
  const std::uint32_t copies;  // as in `Algorithm`
  const bool has_exact;        // some messages are encoded exactly, whatever the codec
  const bool replicates;       // several ranks make the same message
  const Rank root;             // of a broadcast
};

/// The codecs of a tensor, or of a part of one, and how many elements it has.
struct Shape {
  std::size_t count;
  Codec codec;
  Codec sums_codec;
};

/// Tensors that are cut as one. Where lines are cut depends on nothing but counts, codecs,
/// algorithm and lanes, which are the same on all ranks, and so are the cuts.
struct Line {
  std::vector<std::uint32_t> items;  // of the operation
  Layout layout{{}};
  Cut cut{};
  std::shared_ptr<const Routine> routine;
};

/// Consecutive elements of a line, as it is cut.
struct Section {
  std::uint32_t line;
  std::size_t piece;
};

/// What travels together, in a lane of its own: sections of lines with the same routine. Chunk c
/// of it is chunk c of all of them.
struct Piece {
  std::shared_ptr<const Routine> routine;
  std::vector<Section> sections;
};

struct Recipe {
  std::vector<Line> lines;  // at least one, also of nothing: a barrier is that
  std::vector<Piece> pieces;
};

/// Lines up `items` of `shapes`. With `regions` they are as many regions, one after the other,
/// which are alike, and chunk c is region c.
Line make_line(std::vector<std::uint32_t> items, std::span<const Shape> shapes,
               std::shared_ptr<const Routine> routine, const PieceLimits& limits,
               std::uint32_t regions = 0);

/// Cuts the lines into pieces, of which each holds as many sections as may travel together.
Recipe make_recipe(std::vector<Line> lines, std::span<const Shape> shapes,
                   const PieceLimits& limits);

}  // namespace gradwire::engine
