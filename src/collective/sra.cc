// `sra`: scatter-reduce, all-gather. Chunk r belongs to rank r. Everybody sends every owner its
// chunk; owners add up and send the sum to everybody. Two encodings on a number's way whatever the
// number of ranks, 2 (n-1)/n of the bytes per rank: the default.
#include <functional>

#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

/// The peers of `me`, beginning with the next rank, so that not all ranks send to the same one.
template <class Visit>
void each_peer_after(Rank me, Rank count, Visit visit) {
  for (Rank i = 1; i < count; ++i) visit((me + i) % count);
}

void scatter(Program& program, const Ranks& ranks, Rank me) {
  each_peer_after(me, ranks.count, [&](Rank peer) {
    program.encode(Place::input, peer).send(peer).keep(Place::input, peer);
  });
}

/// The owner takes its own message: it must hold what all others will hold.
void gather(Program& program, const Ranks& ranks, Rank me, Place from) {
  program.encode(from, me);
  each_peer_after(me, ranks.count, [&](Rank peer) { program.send(peer); });
  program.keep(from, me).echo(from, me);
  each_peer_after(me, ranks.count,
                  [&](Rank peer) { program.receive(peer).decode(kIncoming, Place::output, peer); });
}

std::string_view refusal(Collective collective, const Ranks&) {
  return has_owners(collective) ? "" : "sra is for all_reduce, reduce_scatter and all_gather";
}

Schedule make(Collective collective, const Ranks& ranks, Rank me) {
  Program program(collective, ranks.count);
  if (collective == Collective::all_gather) {
    if (ranks.count > 1) gather(program, ranks, me, Place::input);
    return std::move(program).done();
  }
  if (ranks.count == 1) return std::move(program.sum_alone()).done();
  scatter(program, ranks, me);
  program.reduce(Place::input, me, ranks.count, std::identity(), me).finish(me);
  if (collective == Collective::reduce_scatter) {
    program.store(me).keep_rounding(me);
  } else {
    gather(program, ranks, me, Place::sum);
  }
  return std::move(program).done();
}

}  // namespace

const Algorithm kSra{"sra", "owners reduce, then send to all; two encodings per number", refusal,
                     make, 1};

}  // namespace gradwire
