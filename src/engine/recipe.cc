#include "engine/recipe.h"

#include <algorithm>
#include <map>

#include "gradwire/frame.h"

namespace gradwire::engine {
namespace {

/// What some elements of a tensor take in a message, at most.
std::size_t bytes_of(const Shape& shape, std::size_t elements, const Routine& routine) {
  const std::size_t exact = routine.has_exact ? max_frame_bytes(exact_codec(), elements) : 0;
  return std::max(
      {exact, max_frame_bytes(shape.codec, elements), max_frame_bytes(shape.sums_codec, elements)});
}

/// The shapes of a line's items, for functions that look at one line alone.
struct Lined {
  const Line& line;
  std::span<const Shape> shapes;

  std::size_t items() const { return line.items.size(); }
  const Shape& shape(std::size_t i) const { return shapes[line.items[i]]; }
  std::size_t bytes(std::size_t i, std::size_t elements) const {
    return bytes_of(shape(i), elements, *line.routine);
  }
};

/// What all elements of a piece take, of the piece for which that is most. Pieces of a tensor that
/// it fills are alike, so that nothing is looked at but where tensors begin and end.
std::size_t largest_piece_bytes(const Lined& lined, std::size_t piece, std::size_t whole) {
  std::size_t largest = 0, bytes = 0, current = 0;
  const auto add = [&](std::size_t index, std::size_t item, std::size_t elements) {
    if (index != current) bytes = 0;
    current = index;
    bytes += lined.bytes(item, elements);
    largest = std::max(largest, bytes);
  };
  std::size_t start = 0;
  for (std::size_t i = 0; i < lined.items() && start < whole; ++i) {  // regions are alike
    const std::size_t end = start + lined.shape(i).count;
    const std::size_t first = start / piece, last = (std::max(end, start + 1) - 1) / piece;
    add(first, i, std::min(end, (first + 1) * piece) - start);
    if (last > first + 1) add(last - 1, i, piece);
    if (last > first) add(last, i, end - last * piece);
    start = round_up(end, kSliceAlignment);
  }
  return largest;
}

/// What the frames of a piece take besides the numbers of its sections.
std::size_t frame_bytes(const Routine& routine) {
  return routine.schedule.chunks * (kFrameOverheadBytes + kMessageAlignment);
}

/// What the messages of a piece of `cut` take, at most, without their frames.
std::size_t most_bytes(const Lined& lined, const Cut& cut) {
  const std::size_t regions = cut.region > 0 ? cut.size / cut.region : 1;
  std::size_t slice = 0;
  for (std::size_t i = 0; i < lined.items(); ++i) {
    slice = std::max(slice, lined.bytes(i, std::min(lined.shape(i).count, kSliceAlignment)));
  }
  // Every cut between chunks may begin a segment anew.
  const std::size_t cuts =
      std::min<std::size_t>(lined.line.routine->schedule.chunks, cut.piece / kSliceAlignment);
  const std::size_t whole = cut.region > 0 ? cut.region : cut.size;
  return regions * largest_piece_bytes(lined, cut.piece, whole) + cuts * slice;
}

bool fits(const Lined& lined, const Cut& cut, std::size_t lane_bytes) {
  const Routine& routine = *lined.line.routine;
  return routine.copies * (most_bytes(lined, cut) + frame_bytes(routine)) <= lane_bytes;
}

bool is_sparse(const Lined& lined) {
  for (std::size_t i = 0; i < lined.items(); ++i) {
    if (!lined.shape(i).codec.traits().sparse) return false;
  }
  return true;
}

/// What a section takes in the messages of its piece, at most, and how many elements it has.
struct Load {
  std::size_t elements = 0;
  std::size_t bytes = 0;
};

Load load_of(const Lined& lined, std::size_t piece) {
  Load load;
  const std::uint32_t chunks = lined.line.routine->schedule.chunks;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const Range range = lined.line.cut.chunk(piece, chunk, chunks);
    load.elements += range.size();
    lined.line.layout.each_part(range,
                                [&](std::size_t item, std::size_t, std::size_t count, std::size_t) {
                                  load.bytes += lined.bytes(item, count);
                                });
  }
  return load;
}

/// Fills pieces one after the other, of each routine on its own.
class Packer {
 public:
  Packer(Recipe& recipe, std::size_t lane_bytes) : recipe_(recipe), lane_bytes_(lane_bytes) {}

  /// `most_elements` may be in a piece of which this section is one of several.
  void add(Section section, const std::shared_ptr<const Routine>& routine, Load load,
           std::size_t most_elements) {
    Open& open = open_[routine.get()];
    const std::size_t elements = open.load.elements + load.elements;
    const std::size_t bytes =
        routine->copies * (open.load.bytes + load.bytes + frame_bytes(*routine));
    const bool joins = elements <= most_elements && bytes <= lane_bytes_;
    if (!open.piece.sections.empty() && !joins) close(open);
    open.piece.routine = routine;
    open.piece.sections.push_back(section);
    open.load.elements += load.elements;
    open.load.bytes += load.bytes;
    if (open.piece.sections.size() == 1) order_.push_back(routine.get());
  }

  void close_all() {
    for (const Routine* routine : order_) {
      Open& open = open_[routine];
      if (!open.piece.sections.empty()) close(open);
    }
  }

 private:
  struct Open {
    Piece piece;
    Load load;
  };

  void close(Open& open) {
    recipe_.pieces.push_back(std::move(open.piece));
    open = {};
  }

  Recipe& recipe_;
  const std::size_t lane_bytes_;
  std::map<const Routine*, Open> open_;
  std::vector<const Routine*> order_;  // in which pieces were begun: the same on all ranks
};

}  // namespace

const Codec& exact_codec() {
  static const Codec kExact = Codec::parse("none");
  return kExact;
}

Routine::Routine(const Algorithm& by, Collective collective, const Ranks& ranks, Rank me)
    : algorithm(by.name),
      schedule(by.make(collective, ranks, me)),
      lifetimes(lifetimes_of(schedule)),
      copies(by.copies(collective, ranks)),
      has_exact(by.has_exact()),
      replicates(by.replicates(collective, ranks)),
      root(ranks.root) {}

Line make_line(std::vector<std::uint32_t> items, std::span<const Shape> shapes,
               std::shared_ptr<const Routine> routine, const PieceLimits& limits,
               std::uint32_t regions) {
  std::vector<std::size_t> counts;
  for (const std::uint32_t item : items) counts.push_back(shapes[item].count);
  Line line{.items = std::move(items), .layout = Layout(counts), .routine = std::move(routine)};
  const Lined lined{line, shapes};
  Cut cut{.size = line.layout.size()};
  if (regions > 0) {
    const std::size_t share = piece_elements(limits, false) / regions;
    cut.region = cut.size / regions;
    cut.piece = round_up(std::max<std::size_t>(1, share), kSliceAlignment);
  } else {
    cut.piece = piece_elements(limits, is_sparse(lined));
  }
  while (cut.piece > kSliceAlignment && !fits(lined, cut, limits.lane_bytes)) {
    cut.piece = round_up(cut.piece / 2, kSliceAlignment);
  }
  line.cut = cut;
  return line;
}

Recipe make_recipe(std::vector<Line> lines, std::span<const Shape> shapes,
                   const PieceLimits& limits) {
  Recipe recipe{std::move(lines), {}};
  Packer packer(recipe, limits.lane_bytes);
  for (std::uint32_t i = 0; i < recipe.lines.size(); ++i) {
    const Line& line = recipe.lines[i];
    const Lined lined{line, shapes};
    const std::size_t most = piece_elements(limits, is_sparse(lined));
    for (std::size_t piece = 0; piece < line.cut.pieces(); ++piece) {
      packer.add({i, piece}, line.routine, load_of(lined, piece), most);
    }
  }
  packer.close_all();
  return recipe;
}

}  // namespace gradwire::engine
