// `allgather`: everybody sends everything to everybody, and each rank adds up by itself. One
// encoding, one hop, (n-1) times the bytes: for small tensors, and for messages so sparse that
// their sum is not.
#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

std::string_view refusal(Collective collective, const Ranks&) {
  return collective == Collective::all_reduce ? "" : "allgather is for all_reduce";
}

/// Sums run in rank order on every rank, over the bytes that all have: the own ones are decoded,
/// too. All round the same sums, so that one of them keeps what rounding takes.
Schedule make(Collective collective, const Ranks& ranks, Rank me) {
  Program program(collective, 1);
  if (ranks.count == 1) return std::move(program.sum_alone()).done();
  program.encode(Place::input, 0);
  for (Rank i = 1; i < ranks.count; ++i) program.send((me + i) % ranks.count);
  program.keep(Place::input, 0);
  for (Rank from = 0; from < ranks.count; ++from) {
    const std::uint16_t slot = from == me ? kOutgoing : kIncoming;
    if (from != me) program.receive(from);
    from == 0 ? program.decode(slot, Place::sum, 0) : program.decode_add(slot, 0);
  }
  program.finish(0).store(0);
  if (me == 0) program.keep_rounding(0);
  return std::move(program).done();
}

}  // namespace

const Algorithm kAllgather{"allgather", "everything to everybody; one encoding, one hop", refusal,
                           make, 1};

}  // namespace gradwire
