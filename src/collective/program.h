// Writes schedules: one call per step, so that an algorithm reads as its paper does.
#pragma once

#include <algorithm>
#include <utility>

#include "collective/schedule.h"

namespace gradwire {

/// Slots by their use. Most algorithms need no more: what is made is sent or decoded at once.
inline constexpr std::uint16_t kOutgoing = 0;
inline constexpr std::uint16_t kIncoming = 1;

class Program {
 public:
  /// Sums take inputs up, with what was kept of them. Whoever encodes inputs fits codecs to them;
  /// but for a broadcast, which only the root could.
  Program(Collective collective, std::uint32_t chunks) {
    schedule_.chunks = chunks;
    if (has_sums(collective)) prepare(Op::measure).prepare(Op::take);
    if (has_owners(collective)) prepare(Op::fit);
  }

  Program& load(std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::load, .first = first, .count = count});
  }
  Program& add(std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::add, .first = first, .count = count});
  }
  Program& finish(std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::finish, .first = first, .count = count});
  }
  Program& store(std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::store, .first = first, .count = count});
  }
  Program& keep_rounding(std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::keep_rounding, .first = first, .count = count});
  }
  Program& encode(Place place, std::uint32_t first, std::uint32_t count = 1,
                  std::uint16_t slot = kOutgoing) {
    return put({.op = Op::encode, .place = place, .slot = slot, .first = first, .count = count});
  }
  Program& encode_exactly(Place place, std::uint32_t first, std::uint32_t count = 1,
                          std::uint16_t slot = kOutgoing) {
    encode(place, first, count, slot);
    schedule_.steps.back().exact = true;
    return *this;
  }
  Program& keep(Place place, std::uint32_t first, std::uint32_t count = 1,
                std::uint16_t slot = kOutgoing) {
    return put({.op = Op::keep, .place = place, .slot = slot, .first = first, .count = count});
  }
  Program& echo(Place place, std::uint32_t first, std::uint32_t count = 1,
                std::uint16_t slot = kOutgoing) {
    return put({.op = Op::echo, .place = place, .slot = slot, .first = first, .count = count});
  }
  Program& decode(std::uint16_t slot, Place place, std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::decode, .place = place, .slot = slot, .first = first, .count = count});
  }
  Program& decode_add(std::uint16_t slot, std::uint32_t first, std::uint32_t count = 1) {
    return put({.op = Op::decode_add, .slot = slot, .first = first, .count = count});
  }
  Program& send(Rank peer, std::uint16_t slot = kOutgoing) {
    return put({.op = Op::send, .slot = slot, .peer = peer});
  }
  Program& receive(Rank peer, std::uint16_t slot = kIncoming) {
    return put({.op = Op::receive, .slot = slot, .peer = peer});
  }

  /// Adds up what `count` ranks contribute, always in the same order, so that the sum does not
  /// depend on timing: the order of ranks, but one's own numbers come first where they are in the
  /// sum already. `me` is one's own place among them, `own` where its numbers are; `rank_at(place)`
  /// says whom to receive from.
  template <class RankAt>
  Program& reduce(Place own, Rank me, Rank count, RankAt rank_at, std::uint32_t first,
                  std::uint32_t chunks = 1) {
    // a + b is b + a: with place 1 first nothing changes, and there is one copy less.
    const bool begin_with_own = own == Place::sum || me <= 1;
    if (begin_with_own && own == Place::input) load(first, chunks);
    for (Rank from = 0; from < count; ++from) {
      if (from == me) {
        if (!begin_with_own) add(first, chunks);
        continue;
      }
      receive(rank_at(from));
      from == 0 && !begin_with_own ? decode(kIncoming, Place::sum, first, chunks)
                                   : decode_add(kIncoming, first, chunks);
    }
    return *this;
  }

  /// What one rank does by itself: nobody loses anything.
  Program& sum_alone() { return load(0).finish(0).store(0).keep_rounding(0); }

  Schedule done() && { return std::move(schedule_); }

 private:
  Program& prepare(Op op) {
    schedule_.preparation.push_back({.op = op, .count = schedule_.chunks});
    return *this;
  }
  Program& put(Step step) {
    schedule_.slots = std::max<std::uint16_t>(schedule_.slots, step.slot + 1);
    schedule_.steps.push_back(step);
    return *this;
  }

  Schedule schedule_;
};

}  // namespace gradwire
