#include "engine/pieces.h"

#include "engine/lane.h"
#include "gradwire/frame.h"

namespace gradwire::engine {
namespace {

/// What some elements of a tensor take in a message, at most.
std::size_t bytes_of(const Item& item, std::size_t elements) {
  return std::max(max_frame_bytes(item.codec, elements),
                  max_frame_bytes(item.sums_codec, elements));
}

/// What all elements of a piece take, of the piece for which that is most. Pieces of a tensor that
/// it fills are alike, so that nothing is looked at but where tensors begin and end.
std::size_t largest_piece_bytes(const Operation& operation, std::size_t piece, std::size_t whole) {
  std::size_t largest = 0, bytes = 0, current = 0;
  const auto add = [&](std::size_t index, const Item& item, std::size_t elements) {
    if (index != current) bytes = 0;
    current = index;
    bytes += bytes_of(item, elements);
    largest = std::max(largest, bytes);
  };
  std::size_t start = 0;
  for (const Item& item : operation.items) {
    if (start >= whole) break;  // regions are alike
    const std::size_t end = start + item.view.count;
    const std::size_t first = start / piece, last = (std::max(end, start + 1) - 1) / piece;
    add(first, item, std::min(end, (first + 1) * piece) - start);
    if (last > first + 1) add(last - 1, item, piece);
    if (last > first) add(last, item, end - last * piece);
    start = round_up(end, kSliceAlignment);
  }
  return largest;
}

bool fits(const Operation& operation, const Cut& cut, std::size_t lane_bytes) {
  const std::size_t regions = cut.region > 0 ? cut.size / cut.region : 1;
  const std::size_t chunks = operation.routine->schedule.chunks;
  std::size_t slice = 0;
  for (const Item& item : operation.items) {
    slice = std::max(slice, bytes_of(item, std::min(item.view.count, kSliceAlignment)));
  }
  // Every cut between chunks may begin a segment anew, and every chunk a message.
  const std::size_t cuts = std::min(chunks, cut.piece / kSliceAlignment);
  const std::size_t bytes =
      regions * largest_piece_bytes(operation, cut.piece, cut.region > 0 ? cut.region : cut.size) +
      cuts * slice + chunks * (kFrameOverheadBytes + kMessageAlignment);
  return operation.routine->copies * bytes <= lane_bytes;
}

}  // namespace

Cut cut_for_lanes(const Operation& operation, std::size_t wanted, std::size_t region,
                  std::size_t lane_bytes) {
  Cut cut{operation.layout.size(), wanted, region};
  while (cut.piece > kSliceAlignment && !fits(operation, cut, lane_bytes)) {
    cut.piece = round_up(cut.piece / 2, kSliceAlignment);
  }
  return cut;
}

}  // namespace gradwire::engine
