// `hierarchical`: reduce-scatter inside each host, all-reduce of every share across hosts,
// all-gather inside. Each of a host's k ranks carries 1/k of what crosses its link.
//
// With k ranks on each of m hosts, the numbers are cut into k shares of m chunks: local rank j owns
// share j of its host, and host h owns chunk h of it among the ranks j of all hosts.
#include "collective/algorithms.h"
#include "collective/program.h"

namespace gradwire {
namespace {

struct Hosts {
  Rank per_host, count, host, local;
  Rank neighbour(Rank other_local) const { return host * per_host + other_local; }
  Rank counterpart(Rank other_host) const { return other_host * per_host + local; }
  std::uint32_t share(Rank other_local) const { return other_local * count; }
  std::uint32_t chunk(Rank other_host) const { return local * count + other_host; }
};

enum class Inside { by_codecs, exactly };

void reduce_inside(Program& program, const Hosts& hosts, Inside how) {
  for (Rank i = 1; i < hosts.per_host; ++i) {
    const Rank other = (hosts.local + i) % hosts.per_host;
    const std::uint32_t share = hosts.share(other);
    how == Inside::exactly ? program.encode_exactly(Place::input, share, hosts.count)
                           : program.encode(Place::input, share, hosts.count);
    program.send(hosts.neighbour(other)).keep(Place::input, share, hosts.count);
  }
  program.reduce(
      Place::input, hosts.local, hosts.per_host, [&](Rank local) { return hosts.neighbour(local); },
      hosts.share(hosts.local), hosts.count);
}

/// `sra` over the counterparts.
void reduce_across(Program& program, const Hosts& hosts) {
  for (Rank i = 1; i < hosts.count; ++i) {
    const Rank other = (hosts.host + i) % hosts.count;
    program.encode(Place::sum, hosts.chunk(other)).send(hosts.counterpart(other));
    program.keep(Place::sum, hosts.chunk(other));
  }
  program.reduce(
      Place::sum, hosts.host, hosts.count, [&](Rank host) { return hosts.counterpart(host); },
      hosts.chunk(hosts.host));
  program.finish(hosts.chunk(hosts.host));
}

/// The owner's bytes reach all ranks: its counterparts pass them on inside their hosts.
void gather(Program& program, const Hosts& hosts) {
  const auto pass_on = [&](std::uint16_t slot) {
    for (Rank i = 1; i < hosts.per_host; ++i) {
      program.send(hosts.neighbour((hosts.local + i) % hosts.per_host), slot);
    }
  };
  program.encode(Place::sum, hosts.chunk(hosts.host));
  for (Rank i = 1; i < hosts.count; ++i) {
    program.send(hosts.counterpart((hosts.host + i) % hosts.count));
  }
  pass_on(kOutgoing);
  program.keep(Place::sum, hosts.chunk(hosts.host)).echo(Place::sum, hosts.chunk(hosts.host));
  for (Rank i = 1; i < hosts.count; ++i) {
    const Rank from = (hosts.host + i) % hosts.count;
    program.receive(hosts.counterpart(from));
    pass_on(kIncoming);
    program.decode(kIncoming, Place::output, hosts.chunk(from));
  }
  // The other shares, in the order in which their owners pass them on.
  for (Rank i = 0; i < hosts.count; ++i) {
    const Rank host = (hosts.host + i) % hosts.count;
    for (Rank j = 1; j < hosts.per_host; ++j) {
      const Rank other = (hosts.local + j) % hosts.per_host;
      program.receive(hosts.neighbour(other));
      program.decode(kIncoming, Place::output, hosts.share(other) + host);
    }
  }
}

std::string_view refusal(Collective collective, const Ranks& ranks) {
  if (collective != Collective::all_reduce)
    return "hierarchical and hierarchical-exact are for all_reduce";
  if (ranks.per_host == 0)
    return "hierarchical and hierarchical-exact need the same number of ranks on every host";
  return "";
}

template <Inside kInside>
Schedule make(Collective collective, const Ranks& ranks, Rank me) {
  Program program(collective, ranks.count);
  if (ranks.count == 1) return std::move(program.sum_alone()).done();
  const Hosts hosts{ranks.per_host, ranks.count / ranks.per_host, me / ranks.per_host,
                    me % ranks.per_host};
  reduce_inside(program, hosts, kInside);
  reduce_across(program, hosts);
  gather(program, hosts);
  return std::move(program).done();
}

}  // namespace

const Algorithm kHierarchical{"hierarchical", "reduce inside hosts, across them, and gather inside",
                              refusal, make<Inside::by_codecs>, 2};
const Algorithm kHierarchicalExact{"hierarchical-exact",
                                   "the same, with exact messages until they leave the host",
                                   refusal,
                                   make<Inside::exactly>,
                                   2,
                                   true};

}  // namespace gradwire
