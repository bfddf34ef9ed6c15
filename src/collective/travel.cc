#include "collective/travel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <set>

#include "collective/circle.h"
#include "collective/program.h"

namespace gradwire {
namespace {

using Kind = Hop::Kind;
constexpr std::array kAllLevels{Level::all, Level::inside, Level::between};

/// Messages of one leg that a rank may have to handle: beyond that nobody would take it.
constexpr std::uint64_t kMostMessages = 1 << 16;

/// The hops that somebody makes: among one rank there are none.
std::vector<Leg> without_idle_hops(std::span<const Leg> legs, const Ranks& ranks) {
  std::vector<Leg> result;
  for (const Leg& leg : legs) {
    Leg real{.exact = leg.exact, .hops = {}};
    std::ranges::copy_if(leg.hops, std::back_inserter(real.hops),
                         [&](const Hop& hop) { return size_of(hop.level, ranks) > 1; });
    if (!real.hops.empty()) result.push_back(real);
  }
  return result;
}

/// Those of an all_reduce's that the collective needs.
std::vector<Leg> legs_for(Collective collective, std::span<const Leg> legs, const Ranks& ranks) {
  if (ranks.count == 1) return {};
  if (collective == Collective::all_reduce) return without_idle_hops(legs, ranks);
  if (collective == Collective::reduce_scatter) return {legs.front()};
  if (collective != Collective::barrier) return {legs.back()};
  return {{false, {{Kind::up, Level::all}}}, legs.back()};
}

// ---------------------------------------------------------------------------------------------

/// Writes one rank's schedule, leg after leg.
class LegWriter {
 public:
  LegWriter(std::span<const Leg> legs, Collective collective, const Ranks& ranks, Rank me)
      : legs_(legs_for(collective, legs, ranks)),
        collective_(collective),
        ranks_(ranks),
        me_(me),
        owners_{count_owners(Level::all), count_owners(Level::inside),
                count_owners(Level::between)},
        program_(collective, chunks()) {
    state(Level::all).scattered = collective == Collective::all_gather;
    state(Level::all).rooted = collective == Collective::broadcast;
  }

  Schedule travel() && {
    if (ranks_.count == 1 && has_sums(collective_)) program_.sum_alone();
    for (at_ = 0; at_ < legs_.size(); ++at_) {
      const Hop first = hops().front();
      if (first.kind == Kind::around) {
        go_around(first.level);
      } else {
        first.kind == Kind::up ? climb(first.level) : go();
        for (const Hop& hop : hops()) pass(hop);
        if (std::ranges::any_of(hops(), &Hop::merges)) arrive();
      }
    }
    return std::move(program_).done();
  }

 private:
  // ---- Where numbers are

  /// What has become of them at one level.
  struct LevelState {
    bool scattered = false;   // each rank has its part
    bool rooted = false;      // the first rank has them
    bool replicated = false;  // all ranks have the same sums
  };
  LevelState& state(Level level) { return states_[static_cast<std::size_t>(level)]; }
  const LevelState& state(Level level) const { return states_[static_cast<std::size_t>(level)]; }

  const Leg& leg() const { return legs_[at_]; }
  const std::vector<Hop>& hops() const { return leg().hops; }
  bool is_last() const { return at_ + 1 == legs_.size(); }

  Circle circle(Level level) const { return circle_of(level, ranks_, me_); }
  Rank place_at(Level level, Rank rank) const { return circle_of(level, ranks_, rank).me; }

  /// Owners at a level, or 1.
  std::uint32_t owners(Level level) const { return owners_[static_cast<std::size_t>(level)]; }
  std::uint32_t count_owners(Level level) const {
    for (const Leg& leg : legs_) {
      for (const Hop& hop : leg.hops) {
        const bool owns = hop.kind == Kind::around || hop.kind == Kind::to_owners ||
                          hop.kind == Kind::from_owners;
        if (hop.level == level && owns) return size_of(level, ranks_);
      }
    }
    return 1;
  }
  std::uint32_t chunks() const {
    std::uint32_t chunks = 1;
    for (const Level level : kAllLevels) chunks *= owners(level);
    return chunks;
  }
  /// The place of a chunk's owner at a level: each part of a host is cut into parts of all hosts.
  Rank owner_of(Level level, Chunks chunks) const {
    if (level == Level::all) return chunks.first;
    const std::uint32_t hosts = owners(Level::between);
    return level == Level::inside ? chunks.first / hosts : chunks.first % hosts;
  }

  bool takes_part(Rank rank) const {
    return std::ranges::none_of(
        kAllLevels, [&](Level level) { return state(level).rooted && place_at(level, rank) != 0; });
  }
  /// Those of which a rank that takes part has numbers.
  Chunks held_by(Rank rank) const {
    Chunks held{0, chunks()};
    for (const Level level : kAllLevels) {
      if (state(level).scattered) held = held.part(place_at(level, rank), owners(level));
    }
    return held;
  }
  bool is_replicated() const { return std::ranges::any_of(states_, &LevelState::replicated); }
  /// Of the ranks that have the same sums, one keeps what is lost of them.
  bool is_keeper() const {
    return std::ranges::none_of(kAllLevels, [&](Level level) {
      return state(level).replicated && place_at(level, me_) != 0;
    });
  }
  bool is_complete() const { return added_up_ == ranks_.count; }

  void pass(const Hop& hop) {
    LevelState& level = state(hop.level);
    level.scattered = hop.kind == Kind::to_owners;
    level.rooted = hop.kind == Kind::to_root || hop.kind == Kind::up;
    level.replicated = !level.scattered && !level.rooted;
    if (!hop.merges()) return;
    from_ = Place::sum;
    added_up_ *= size_of(hop.level, ranks_);
  }

  /// What follows where sums have been added up.
  void arrive() {
    if (!takes_part(me_)) return;
    const Chunks held = held_by(me_);
    if (is_complete()) program_.finish(held, is_keeper());
    if (is_last()) store(held);
  }
  void store(Chunks chunks) {
    program_.store(chunks);
    if (is_keeper()) program_.keep_rounding(chunks);
  }

  // ---- Messages

  Sum sum() const {
    if (from_ == Place::input || !is_complete()) return Sum::partial;
    return is_last() ? Sum::delivered : Sum::complete;
  }
  void encode(Chunks chunks, std::uint16_t slot = kOutgoing) {
    program_.encode(from_, chunks, slot,
                    {.exact = leg().exact, .replicated = is_replicated(), .sum = sum()});
  }
  void keep(Chunks chunks, std::uint16_t slot = kOutgoing) {
    if (is_keeper()) program_.keep(from_, chunks, slot, {.exact = leg().exact, .sum = sum()});
  }
  void send(Level level, const std::vector<Rank>& places, std::uint16_t slot) {
    for (const Rank place : places) program_.send(circle(level).rank_at(place), slot);
  }
  /// Beginning with the next, so that not all ranks send to the same one.
  static std::vector<Rank> others(const Circle& circle) {
    std::vector<Rank> places;
    for (Rank i = 1; i < circle.count; ++i) places.push_back(circle.after(i));
    return places;
  }

  /// To whom this rank sends a message by a hop.
  std::vector<Rank> targets(const Hop& hop, Chunks message) const {
    const Circle circle = this->circle(hop.level);
    const Rank owner = hop.kind == Kind::to_owners ? owner_of(hop.level, message) : 0;
    if (hop.kind == Kind::from_root) return children_of(circle.me, circle.count);
    if (!hop.moves()) return others(circle);
    return owner == circle.me ? std::vector<Rank>() : std::vector{owner};
  }
  /// Whether a message that this rank has is here after the hop, too.
  bool stays(const Hop& hop, Chunks message) const {
    return !hop.moves() || targets(hop, message).empty();
  }

  // ---- The messages of a leg. Every rank gets them in an order that all ranks know: by the
  // hops, and within one by senders, each of which passes them on in its own order.

  /// Messages are never cut: numbers are, into the parts of all owners to whom the leg leads.
  void add_parts(Chunks whole, std::size_t hop, std::vector<Chunks>& to) const {
    while (hop < hops().size() && hops()[hop].kind != Kind::to_owners) ++hop;
    if (hop == hops().size()) return to.push_back(whole);
    const std::uint32_t parts = owners(hops()[hop].level);
    for (std::uint32_t i = 0; i < parts; ++i) add_parts(whole.part(i, parts), hop + 1, to);
  }
  std::vector<Chunks> parts_of(Rank rank) const {
    std::vector<Chunks> parts;
    if (takes_part(rank)) add_parts(held_by(rank), 0, parts);
    return parts;
  }
  /// Those for one of the owners to whom the first hop leads.
  std::vector<Chunks> parts_of(Rank rank, Rank owner) const {
    std::vector<Chunks> parts;
    const std::uint32_t owners = this->owners(hops().front().level);
    if (takes_part(rank)) add_parts(held_by(rank).part(owner, owners), 1, parts);
    return parts;
  }

  /// Places of senders. What is added up is added in the order of ranks everywhere; what is not
  /// begins with one's own.
  static std::vector<Rank> senders(const Hop& hop, const Circle& circle) {
    if (hop.kind == Kind::from_root) return {0};
    std::vector<Rank> places;
    for (Rank i = 0; i < circle.count; ++i) places.push_back(hop.merges() ? i : circle.after(i));
    return places;
  }

  /// What a rank has after so many hops.
  std::vector<Chunks> messages_of(Rank rank, std::size_t hops_made) const {
    if (hops_made == 0) return parts_of(rank);
    const Hop& hop = hops()[hops_made - 1];
    const Circle circle = circle_of(hop.level, ranks_, rank);
    std::vector<Chunks> messages;
    for (const Rank place : senders(hop, circle)) {
      std::ranges::copy(messages_between(circle.rank_at(place), rank, hops_made),
                        std::back_inserter(messages));
    }
    return messages;
  }
  /// What of it comes from another rank by the last of these hops, or stays with the same.
  std::vector<Chunks> messages_between(Rank from, Rank to, std::size_t hops_made) const {
    const Hop& hop = hops()[hops_made - 1];
    const Rank place = place_at(hop.level, to);
    if (hop.kind == Kind::to_root && place != 0) return {};
    if (hop.kind == Kind::to_owners && hops_made == 1) return parts_of(from, place);
    std::vector<Chunks> messages = messages_of(from, hops_made - 1);
    if (hop.kind == Kind::to_owners) {
      std::erase_if(messages, [&](Chunks each) { return owner_of(hop.level, each) != place; });
    }
    return messages;
  }

  // ---- A leg

  /// A message that waits for its turn.
  struct Waiting {
    Chunks chunks;
    std::uint16_t slot;
    bool raw = false;  // this rank's numbers themselves: the message was never made
    bool kept = true;  // what it lacks
  };
  /// One that comes by a hop, from a place in its circle.
  struct Coming {
    Rank place;
    Chunks chunks;
  };

  bool adds_up() const { return hops().front().merges(); }
  /// Whether messages may still come after so many hops for what is in those that are here.
  bool more_to_add(std::size_t hops_made) const {
    return std::any_of(hops().begin() + static_cast<std::ptrdiff_t>(hops_made), hops().end(),
                       [](const Hop& hop) { return hop.merges(); });
  }
  /// Whether only this rank will ever have the message.
  bool never_leaves(Chunks message) const {
    return std::ranges::all_of(
        hops(), [&](const Hop& hop) { return hop.moves() && targets(hop, message).empty(); });
  }

  void go() {
    begun_.clear();
    if (takes_part(me_)) hand_out();
    for (std::size_t hop = 1; hop <= hops().size(); ++hop) collect(hop);
  }

  void give(Level level, Rank place, Chunks part) {
    encode(part);
    send(level, {place}, kOutgoing);
    keep(part);
  }

  /// Makes the messages. Those that stay here come last.
  void hand_out() {
    const Hop& hop = hops().front();
    const Rank me = circle(hop.level).me;
    const bool to_owners = hop.kind == Kind::to_owners;
    std::vector<Chunks> own = to_owners ? parts_of(me_, me) : parts_of(me_);
    if (to_owners) {
      for (const Rank place : others(circle(hop.level))) {
        for (const Chunks part : parts_of(me_, place)) give(hop.level, place, part);
      }
    } else if (hop.kind == Kind::to_root && me != 0) {
      for (const Chunks part : own) give(hop.level, 0, part);
      own.clear();
    }
    for (const Chunks part : own) {
      if (never_leaves(part)) {
        waiting_.push_back({.chunks = part, .slot = 0, .raw = true});
        continue;
      }
      const std::uint16_t slot = own.size() == 1 ? kOutgoing : free_slot();
      encode(part, slot);
      send(hop.level, targets(hop, part), slot);
      if (adds_up()) keep(part, slot);
      waiting_.push_back({.chunks = part, .slot = slot, .kept = adds_up()});
    }
  }

  std::vector<Coming> coming(std::size_t hop_number) const {
    const Hop& hop = hops()[hop_number - 1];
    const Circle circle = this->circle(hop.level);
    std::vector<std::vector<Coming>> by_sender;
    std::size_t most = 0;
    for (const Rank place : senders(hop, circle)) {
      auto& theirs = by_sender.emplace_back();
      for (const Chunks each : messages_between(circle.rank_at(place), me_, hop_number)) {
        theirs.push_back({place, each});
      }
      most = std::max(most, theirs.size());
    }
    std::vector<Coming> result;
    if (hop.merges() || hop_number < hops().size()) {
      for (const auto& theirs : by_sender) std::ranges::copy(theirs, std::back_inserter(result));
      return result;
    }
    for (std::size_t i = 0; i < most; ++i) {  // from each in turn: none is kept waiting
      for (const auto& theirs : by_sender) {
        if (i < theirs.size()) result.push_back(theirs[i]);
      }
    }
    return result;
  }

  /// Takes in what comes by a hop, passes on what goes further, and decodes what ends here.
  void collect(std::size_t hop_number) {
    const Hop& hop = hops()[hop_number - 1];
    const Circle circle = this->circle(hop.level);
    const std::vector<Coming> all = coming(hop_number);
    const bool waits = more_to_add(hop_number);
    const bool here_before = hop_number == 1 || more_to_add(hop_number - 1);
    if (!waits) begin_sum(all, circle.me);
    for (const Coming& each : all) {
      const bool own = each.place == circle.me;
      if (own && !here_before) continue;  // it was decoded when it came
      Waiting message = own ? take_waiting() : receive(hop, circle, each);
      if (waits) {
        pass_on(message, hop_number, hop_number + 1);
        if (stays(hops()[hop_number], message.chunks)) {
          waiting_.push_back(message);
        } else {
          release(message.slot);
        }
      } else {
        pass_on(message, hop_number, hops().size());
        use(message, own);
        release(message.slot);
      }
    }
  }

  Waiting take_waiting() {
    const Waiting first = waiting_.front();
    waiting_.pop_front();
    return first;
  }
  Waiting receive(const Hop& hop, const Circle& circle, const Coming& coming) {
    const bool by_tree = hop.kind == Kind::from_root;
    const std::size_t hop_number = static_cast<std::size_t>(&hop - hops().data()) + 1;
    const bool waits = more_to_add(hop_number) && stays(hops()[hop_number], coming.chunks);
    const std::uint16_t slot = waits ? free_slot() : kIncoming;
    program_.receive(circle.rank_at(by_tree ? parent_of(circle.me) : coming.place), coming.chunks,
                     slot);
    if (by_tree) send(hop.level, children_of(circle.me, circle.count), slot);
    return {.chunks = coming.chunks, .slot = slot};
  }
  /// By the hops behind `made`, up to `last`.
  void pass_on(const Waiting& message, std::size_t made, std::size_t last) {
    if (message.raw) return;
    for (std::size_t i = made; i < last; ++i) {
      send(hops()[i].level, targets(hops()[i], message.chunks), message.slot);
    }
  }

  /// One's own numbers are where they are added up, or enter there: as they come first or second,
  /// which is the same, before all others.
  void begin_sum(const std::vector<Coming>& all, Rank me) {
    const auto own = std::ranges::find(all, me, &Coming::place);
    if (waiting_.empty() || !waiting_.front().raw || own == all.end()) return;
    if (from_ == Place::input && own - all.begin() > 1) return;
    if (from_ == Place::input) program_.load(own->chunks);
    begun_.insert(own->chunks.first);
    own_entered_ = true;
  }

  /// A message that has come to its end, or one's own numbers.
  void use(const Waiting& message, bool own) {
    if (!adds_up()) return deliver(message, own);
    const bool first = begun_.insert(message.chunks.first).second;
    if (message.raw) {
      if (!own_entered_) program_.add(message.chunks);
      own_entered_ = false;
    } else if (first) {
      program_.decode(message.slot, Place::sum, message.chunks);
    } else {
      program_.decode_add(message.slot, message.chunks);
    }
  }
  void deliver(const Waiting& message, bool own) {
    if (own && !message.kept) keep(message.chunks, message.slot);
    if (own && is_last()) {
      program_.echo(from_, message.chunks, message.slot);
    } else if (!own || !leg().exact) {  // an exact message is what it was made of
      program_.decode(message.slot, is_last() ? Place::output : Place::sum, message.chunks);
    }
  }

  std::uint16_t free_slot() {
    std::uint16_t slot = kFirstWaiting;
    while (!used_.insert(slot).second) ++slot;
    return slot;
  }
  void release(std::uint16_t slot) { used_.erase(slot); }

  // ---- Sums that grow on their way

  /// Partial sums climb the tree.
  void climb(Level level) {
    if (!takes_part(me_)) return;
    const Circle circle = this->circle(level);
    const Chunks held = held_by(me_);
    const std::vector<Rank> children = children_of(circle.me, circle.count);
    if (from_ == Place::input && !children.empty()) program_.load(held);
    for (const Rank child : children) {
      program_.receive(circle.rank_at(child), held).decode_add(kIncoming, held);
    }
    if (circle.me == 0) return;
    const Place from = std::exchange(from_, children.empty() ? from_ : Place::sum);
    encode(held);
    send(level, {parent_of(circle.me)}, kOutgoing);
    keep(held);
    from_ = from;
  }

  /// Partial sums travel around, then sums do. A chunk starts behind its owner and ends at it.
  void go_around(Level level) {
    const Circle circle = this->circle(level);
    const Chunks held = held_by(me_);
    if (collective_ != Collective::all_gather) {
      if (takes_part(me_)) grow_around(circle, held);
      pass({Kind::around, level});
      state(level).replicated = false;  // not yet
      if (takes_part(me_)) program_.finish(held.part(circle.me, circle.count), is_keeper());
    }
    if (collective_ == Collective::reduce_scatter) {
      store(held.part(circle.me, circle.count));
    } else if (takes_part(me_)) {
      const Chunks whole = collective_ == Collective::all_gather ? Chunks{0, chunks()} : held;
      deliver_around(circle, whole);
    }
    state(level).replicated = true;
  }
  void grow_around(const Circle& circle, Chunks held) {
    const Rank next = circle.rank_at(circle.after(1));
    const Rank previous = circle.rank_at(circle.after(circle.count - 1));
    const Place from = from_;
    for (Rank hop = 0; hop < circle.count; ++hop) {
      const Chunks part = held.part(circle.after(2 * circle.count - hop - 1), circle.count);
      if (hop > 0) {
        if (from == Place::input) program_.load(part);
        program_.receive(previous, part).decode_add(kIncoming, part);
        from_ = Place::sum;
      }
      if (hop + 1 == circle.count) break;
      encode(part);
      program_.send(next, kOutgoing);
      keep(part);
    }
  }
  /// Messages are passed on as they came: everybody decodes the owner's bytes.
  void deliver_around(const Circle& circle, Chunks whole) {
    const Rank next = circle.rank_at(circle.after(1));
    const Rank previous = circle.rank_at(circle.after(circle.count - 1));
    const Chunks own = whole.part(circle.me, circle.count);
    encode(own);
    program_.send(next, kOutgoing);
    deliver({.chunks = own, .slot = kOutgoing, .kept = false}, true);
    for (Rank hop = 1; hop < circle.count; ++hop) {
      const Chunks part = whole.part(circle.after(circle.count - hop), circle.count);
      program_.receive(previous, part);
      if (hop + 1 < circle.count) program_.send(next, kIncoming);
      deliver({.chunks = part, .slot = kIncoming}, false);
    }
  }

  const std::vector<Leg> legs_;
  const Collective collective_;
  const Ranks ranks_;
  const Rank me_;
  const std::array<std::uint32_t, kLevels> owners_;
  Program program_;
  std::size_t at_ = 0;  // the leg
  std::array<LevelState, kLevels> states_{};
  Place from_ = Place::input;  // where numbers are that are sent next
  Rank added_up_ = 1;          // ranks whose numbers are in each sum
  std::deque<Waiting> waiting_;
  std::set<std::uint16_t> used_;   // slots of messages that wait
  std::set<std::uint32_t> begun_;  // first chunks of sums that hold something
  bool own_entered_ = false;       // one's own numbers, before their turn
};

/// Messages of one leg that come to a rank, about.
std::uint64_t messages_in(const Leg& leg, const Ranks& ranks) {
  std::uint64_t each = 1, merged = 1;
  for (const Hop& hop : leg.hops) {
    each *= size_of(hop.level, ranks);
    merged *= hop.merges() ? size_of(hop.level, ranks) : 1;
  }
  return leg.hops.size() > 1 ? std::max(each, merged * ranks.count) : each;
}

bool is_one_hop(const Leg& leg, std::initializer_list<Kind> kinds) {
  const Hop& hop = leg.hops.front();
  return leg.hops.size() == 1 && hop.level == Level::all &&
         std::ranges::find(kinds, hop.kind) != kinds.end();
}

}  // namespace

std::string refusal_of(std::span<const Leg> legs, Collective collective, const Ranks& ranks) {
  const bool known = collective == Collective::all_reduce ||
                     (collective == Collective::reduce_scatter &&
                      is_one_hop(legs.front(), {Kind::to_owners, Kind::around})) ||
                     (collective == Collective::all_gather &&
                      is_one_hop(legs.back(), {Kind::from_owners, Kind::around})) ||
                     ((collective == Collective::broadcast || collective == Collective::barrier) &&
                      is_one_hop(legs.back(), {Kind::from_root}));
  if (!known) return fmt::format("it is not for {}", name_of(collective));
  const bool has_levels = std::ranges::any_of(
      legs, [](const Leg& leg) { return leg.hops.front().level != Level::all; });
  if (has_levels && ranks.per_host == 0) return "it needs the same number of ranks on every host";
  for (const Leg& leg : legs) {
    const std::uint64_t messages = messages_in(leg, ranks);
    if (messages <= kMostMessages) continue;
    return fmt::format("each of {} ranks would handle {} messages", ranks.count, messages);
  }
  return "";
}

Schedule make_schedule(std::span<const Leg> legs, Collective collective, const Ranks& ranks,
                       Rank me) {
  return LegWriter(legs, collective, ranks, me).travel();
}

}  // namespace gradwire
