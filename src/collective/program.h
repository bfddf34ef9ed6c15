// Writes schedules: one call per step.
#pragma once

#include <algorithm>
#include <utility>

#include "collective/schedule.h"

namespace gradwire {

/// Slots by their use: what is made is sent, what arrives is decoded, and both at once. Messages
/// that wait are in others.
inline constexpr std::uint16_t kOutgoing = 0;
inline constexpr std::uint16_t kIncoming = 1;
inline constexpr std::uint16_t kFirstWaiting = 2;

/// Chunks that stand together.
struct Chunks {
  std::uint32_t first;
  std::uint32_t count;

  Chunks(std::uint32_t first_chunk, std::uint32_t how_many = 1)
      : first(first_chunk), count(how_many) {}

  /// The part of the `index`-th of so many owners.
  Chunks part(std::uint32_t index, std::uint32_t owners) const {
    return {first + index * (count / owners), count / owners};
  }
};

/// How a message is made; as in `Step`.
struct Making {
  bool exact = false;
  bool replicated = false;
  Sum sum = Sum::partial;
};

class Program {
 public:
  /// Sums take inputs up, with what was kept of them. Whoever encodes inputs fits codecs to them;
  /// but for a broadcast, which only the root could.
  Program(Collective collective, std::uint32_t chunks) {
    schedule_.chunks = chunks;
    if (has_sums(collective)) prepare(Op::measure).prepare(Op::take);
    if (has_owners(collective)) prepare(Op::fit);
  }

  Program& load(Chunks chunks) { return put({.op = Op::load}, chunks); }
  Program& add(Chunks chunks) { return put({.op = Op::add}, chunks); }
  Program& finish(Chunks chunks, bool counts = true) {
    return put({.op = Op::finish, .counts = counts}, chunks);
  }
  Program& store(Chunks chunks) { return put({.op = Op::store}, chunks); }
  Program& keep_rounding(Chunks chunks) { return put({.op = Op::keep_rounding}, chunks); }
  Program& encode(Place place, Chunks chunks, std::uint16_t slot = kOutgoing, Making how = {}) {
    return put({.op = Op::encode,
                .place = place,
                .slot = slot,
                .exact = how.exact,
                .replicated = how.replicated,
                .sum = how.sum},
               chunks);
  }
  Program& keep(Place place, Chunks chunks, std::uint16_t slot = kOutgoing, Making how = {}) {
    return put({.op = Op::keep, .place = place, .slot = slot, .exact = how.exact, .sum = how.sum},
               chunks);
  }
  Program& echo(Place place, Chunks chunks, std::uint16_t slot = kOutgoing) {
    return put({.op = Op::echo, .place = place, .slot = slot}, chunks);
  }
  Program& decode(std::uint16_t slot, Place place, Chunks chunks) {
    return put({.op = Op::decode, .place = place, .slot = slot}, chunks);
  }
  Program& decode_add(std::uint16_t slot, Chunks chunks) {
    return put({.op = Op::decode_add, .slot = slot}, chunks);
  }
  Program& send(Rank peer, std::uint16_t slot = kOutgoing) {
    return put({.op = Op::send, .slot = slot, .peer = peer}, {0, 0});
  }
  Program& receive(Rank peer, Chunks chunks, std::uint16_t slot = kIncoming) {
    return put({.op = Op::receive, .slot = slot, .peer = peer}, chunks);
  }

  /// What one rank does by itself: nobody loses anything.
  Program& sum_alone() {
    const Chunks all{0, schedule_.chunks};
    return load(all).finish(all).store(all).keep_rounding(all);
  }

  Schedule done() && { return std::move(schedule_); }

 private:
  Program& prepare(Op op) {
    schedule_.preparation.push_back({.op = op, .count = schedule_.chunks});
    return *this;
  }
  Program& put(Step step, Chunks chunks) {
    step.first = chunks.first;
    step.count = chunks.count;
    schedule_.slots = std::max<std::uint16_t>(schedule_.slots, step.slot + 1);
    schedule_.steps.push_back(step);
    return *this;
  }

  Schedule schedule_;
};

}  // namespace gradwire
