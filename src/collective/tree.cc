// `tree`: a binomial tree towards the root, and back. Few messages and log2(n) hops: for small
// tensors on many ranks, for broadcasts and barriers. Any number of ranks.
#include <bit>

#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

/// A rank's place in the tree, with the root as number 0. The parent of place p is p without its
/// lowest set bit; its children are p + 1, p + 2, p + 4, … below that bit.
struct Place2Rank {
  Ranks ranks;
  Rank rank_at(Rank place) const { return (place + ranks.root) % ranks.count; }
  Rank place_of(Rank rank) const { return (rank + ranks.count - ranks.root) % ranks.count; }
};

template <class Visit>
void each_child(Rank place, Rank count, Visit visit) {
  const Rank end = place == 0 ? std::bit_ceil(count) : place & (~place + 1);
  for (Rank bit = 1; bit < end; bit *= 2) {
    if (place + bit < count) visit(place + bit);
  }
}

Rank parent_of(Rank place) { return place & (place - 1); }

void reduce(Program& program, const Place2Rank& tree, Rank place) {
  const Rank count = tree.ranks.count;
  if (place % 2 == 0 && place + 1 < count) {
    program.load(0);
    each_child(place, count,
               [&](Rank child) { program.receive(tree.rank_at(child)).decode_add(kIncoming, 0); });
    if (place == 0) {
      program.finish(0);
    } else {
      program.encode(Place::sum, 0).send(tree.rank_at(parent_of(place))).keep(Place::sum, 0);
    }
  } else if (place != 0) {  // a leaf
    program.encode(Place::input, 0).send(tree.rank_at(parent_of(place))).keep(Place::input, 0);
  }
}

/// The root's bytes go down as they are.
void broadcast(Program& program, const Place2Rank& tree, Rank place, Place from) {
  const bool root = place == 0;
  const std::uint16_t slot = root ? kOutgoing : kIncoming;
  if (root) {
    program.encode(from, 0);
  } else {
    program.receive(tree.rank_at(parent_of(place)));
  }
  each_child(place, tree.ranks.count, [&](Rank child) { program.send(tree.rank_at(child), slot); });
  root ? program.keep(from, 0).echo(from, 0) : program.decode(slot, Place::output, 0);
}

std::string_view refusal(Collective collective, const Ranks&) {
  const bool known = collective == Collective::all_reduce || collective == Collective::broadcast ||
                     collective == Collective::barrier;
  return known ? "" : "tree is for all_reduce, broadcast and barrier";
}

Schedule make(Collective collective, const Ranks& ranks, Rank me) {
  Program program(collective, 1);
  const bool has_inputs = collective != Collective::broadcast;
  if (ranks.count == 1) {
    if (has_sums(collective)) program.sum_alone();
    return std::move(program).done();
  }
  const Place2Rank tree{ranks};
  const Rank place = tree.place_of(me);
  if (has_inputs) reduce(program, tree, place);
  broadcast(program, tree, place, has_inputs ? Place::sum : Place::input);
  return std::move(program).done();
}

}  // namespace

const Algorithm kTree{"tree", "a binomial tree to the root and back; few messages", refusal, make,
                      2};

}  // namespace gradwire
