// The tensors of an operation, lined up, and how that line is cut into pieces and chunks.
//
// Each tensor starts at a multiple of `kSliceAlignment` (the gaps hold nothing), so every cut at
// such a multiple is one within its tensor as well, as codecs need it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "gradwire/codec.h"
#include "gradwire/tensor.h"

namespace gradwire::engine {

/// Elements of the line.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

class Layout {
 public:
  explicit Layout(std::span<const std::size_t> counts) : counts_(counts.begin(), counts.end()) {
    for (const std::size_t count : counts) {
      starts_.push_back(size_);
      size_ = round_up(size_ + count, kSliceAlignment);
    }
  }

  std::size_t size() const { return size_; }

  /// Calls visit(tensor, first element of it, elements, place in the line) for what lies in
  /// `range`.
  template <class Visit>
  void each_part(Range range, Visit visit) const {
    for (std::size_t i = first_tensor(range.begin); i < starts_.size(); ++i) {
      if (starts_[i] >= range.end) break;
      const std::size_t begin = std::max(range.begin, starts_[i]);
      const std::size_t end = std::min(range.end, starts_[i] + counts_[i]);
      if (begin < end) visit(i, begin - starts_[i], end - begin, begin);
    }
  }

 private:
  /// The last tensor that starts at or before `at`.
  std::size_t first_tensor(std::size_t at) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), at);
    return next == starts_.begin() ? 0 : static_cast<std::size_t>(next - starts_.begin() - 1);
  }

  std::vector<std::size_t> starts_, counts_;
  std::size_t size_ = 0;
};

/// Cuts a line of `size` elements into pieces, and pieces into chunks.
struct Cut {
  std::size_t size = 0;
  std::size_t piece = 0;  ///< elements per piece, a multiple of kSliceAlignment
  /// Set when chunk c is the c-th of equal regions, as in reduce_scatter: a piece then takes a part
  /// of each region.
  std::size_t region = 0;

  std::size_t pieces() const {
    const std::size_t whole = region > 0 ? region : size;
    return std::max<std::size_t>(1, divide_up(whole, piece));
  }
  Range chunk(std::size_t piece_index, std::uint32_t chunk, std::uint32_t chunks) const {
    if (region > 0) {
      const std::size_t base = region * chunk;
      return {base + std::min(region, piece_index * piece),
              base + std::min(region, (piece_index + 1) * piece)};
    }
    const std::size_t begin = std::min(size, piece_index * piece);
    const std::size_t length = std::min(size, begin + piece) - begin;
    return {begin + share(length, chunk, chunks), begin + share(length, chunk + 1, chunks)};
  }

 private:
  static std::size_t share(std::size_t length, std::uint32_t chunk, std::uint32_t chunks) {
    const std::size_t units = divide_up(length, kSliceAlignment);
    return std::min(length, units * chunk / chunks * kSliceAlignment);
  }
};

}  // namespace gradwire::engine
