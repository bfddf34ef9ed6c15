// Who exchanges messages with whom: places in circles, of one level each, and in trees.
#pragma once

#include <bit>
#include <vector>

#include "collective/option.h"
#include "collective/schedule.h"

namespace gradwire {

/// The ranks with which one rank exchanges messages at a level, by their places in it.
struct Circle {
  Rank count, me;
  Rank base, stride, ranks;
  Rank rank_at(Rank place) const { return (base + place * stride) % ranks; }
  Rank after(Rank steps) const { return (me + steps) % count; }
};

inline Circle circle_of(Level level, const Ranks& ranks, Rank rank) {
  if (level == Level::all) {
    const Rank place = (rank + ranks.count - ranks.root) % ranks.count;
    return {ranks.count, place, ranks.root, 1, ranks.count};
  }
  const Rank host = rank / ranks.per_host, local = rank % ranks.per_host;
  if (level == Level::inside) {
    return {ranks.per_host, local, host * ranks.per_host, 1, ranks.count};
  }
  return {ranks.count / ranks.per_host, host, local, ranks.per_host, ranks.count};
}

inline Rank size_of(Level level, const Ranks& ranks) { return circle_of(level, ranks, 0).count; }

/// In a tree the parent of place p is p without its lowest set bit; its children are p + 1, p + 2,
/// p + 4, … below that bit.
inline Rank parent_of(Rank place) { return place & (place - 1); }

inline std::vector<Rank> children_of(Rank place, Rank count) {
  std::vector<Rank> children;
  const Rank end = place == 0 ? std::bit_ceil(count) : place & (~place + 1);
  for (Rank bit = 1; bit < end; bit *= 2) {
    if (place + bit < count) children.push_back(place + bit);
  }
  return children;
}

}  // namespace gradwire
