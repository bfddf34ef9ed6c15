// `ring`: partial sums travel around. Each rank talks to two neighbours only, whatever their
// number; every hop encodes the partial sum anew, so the error grows with the ranks.
#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

/// Where rank `me` stands on the way of a chunk that starts behind its owner and ends at it.
struct Neighbours {
  Rank count, me;
  Rank next() const { return (me + 1) % count; }
  Rank previous() const { return (me + count - 1) % count; }
  /// The chunk that passes here in hop i; hop count - 1 brings the rank's own.
  Rank chunk_in_hop(Rank i) const { return (me + 2 * count - i - 1) % count; }
};

void reduce(Program& program, const Neighbours& ring) {
  const Rank first = ring.chunk_in_hop(0);
  program.encode(Place::input, first).send(ring.next()).keep(Place::input, first);
  for (Rank hop = 1; hop < ring.count; ++hop) {
    const Rank chunk = ring.chunk_in_hop(hop);
    program.load(chunk).receive(ring.previous()).decode_add(kIncoming, chunk);
    if (hop + 1 == ring.count) break;
    program.encode(Place::sum, chunk).send(ring.next()).keep(Place::sum, chunk);
  }
  program.finish(ring.me);
}

/// Messages are passed on as they came: everybody decodes the owner's bytes.
void gather(Program& program, const Neighbours& ring, Place from) {
  program.encode(from, ring.me).send(ring.next()).keep(from, ring.me).echo(from, ring.me);
  for (Rank hop = 1; hop < ring.count; ++hop) {
    const Rank chunk = (ring.me + ring.count - hop) % ring.count;
    program.receive(ring.previous());
    if (hop + 1 < ring.count) program.send(ring.next(), kIncoming);
    program.decode(kIncoming, Place::output, chunk);
  }
}

std::string_view refusal(Collective collective, const Ranks&) {
  return has_owners(collective) ? "" : "ring is for all_reduce, reduce_scatter and all_gather";
}

Schedule make(Collective collective, const Ranks& ranks, Rank me) {
  Program program(collective, ranks.count);
  const bool alone = ranks.count == 1;
  const Neighbours ring{ranks.count, me};
  if (collective == Collective::all_gather) {
    if (!alone) gather(program, ring, Place::input);
    return std::move(program).done();
  }
  if (alone) return std::move(program.sum_alone()).done();
  reduce(program, ring);
  if (collective == Collective::reduce_scatter) {
    program.store(me).keep_rounding(me);
  } else {
    gather(program, ring, Place::sum);
  }
  return std::move(program).done();
}

}  // namespace

const Algorithm kRing{"ring", "partial sums travel around; two neighbours per rank", refusal, make,
                      2};

}  // namespace gradwire
