#include "plan/load.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace gradwire {
namespace {

using Kind = Hop::Kind;

double levels_of_tree(double ranks) { return std::ceil(std::log2(ranks)); }

class Walk {
 public:
  Walk(std::size_t elements, const Cluster& cluster)
      : ranks_(cluster.ranks()),
        hosts_(cluster.hosts),
        per_host_(cluster.ranks_per_host),
        elements_(static_cast<double>(elements)) {}

  void go(const Leg& leg, Device encodes, Device decodes) {
    std::vector<Hop> hops;
    std::ranges::copy_if(leg.hops, std::back_inserter(hops),
                         [&](const Hop& hop) { return size_of(hop.level) > 1; });
    if (hops.empty()) return;
    exact_ = leg.exact;
    if (hops[0].kind == Kind::around) return go_around(hops[0].level);
    if (hops[0].kind == Kind::up) return climb(hops[0].level);

    double part = elements_;  // of one message, which is never cut
    double parts = 1;
    for (const Hop& hop : hops) {
      if (hop.kind != Kind::to_owners) continue;
      part /= size_of(hop.level);
      parts *= size_of(hop.level);
    }
    const bool to_owners_only =
        std::ranges::all_of(hops, [](const Hop& hop) { return hop.kind == Kind::to_owners; });
    const bool moves_only = std::ranges::all_of(hops, &Hop::moves);
    const double own = moves_only ? 1 : 0;  // what never leaves is not encoded
    compute(Load::Kind::encode, encodes, part, to_owners_only ? parts - own : parts);
    for (const Hop& hop : hops) take(hop);
    const bool gathers = !hops[0].merges();
    const double free = moves_only || (exact_ && gathers) ? 1 : 0;  // one's own
    compute(Load::Kind::decode, decodes, part, messages_ * elements_ / part - free);
    messages_ = 1;
  }

  std::vector<Load> loads() && { return std::move(loads_); }

 private:
  double size_of(Level level) const {
    return level == Level::all ? ranks_ : level == Level::inside ? per_host_ : hosts_;
  }
  /// Ranks of a host that exchange messages between hosts.
  double active() const { return inside_is_rooted_ ? 1 : per_host_; }

  void compute(Load::Kind kind, Device device, double elements, double times) {
    if (times <= 0) return;
    loads_.push_back(
        {.kind = kind, .exact = exact_, .device = device, .elements = elements, .times = times});
  }

  /// Every rank sends `to_each` to every other one of the level.
  void exchange(Level level, double to_each) {
    const double ranks = size_of(level);
    if (level == Level::inside) return inside(ranks - 1, (ranks - 1) * to_each, hosts_);
    if (level == Level::between) return between(ranks - 1, (ranks - 1) * to_each, active());
    const double strangers = ranks_ - per_host_;
    if (strangers > 0) between(strangers, strangers * to_each, per_host_);
    if (per_host_ == 1) return;
    inside(per_host_ - 1, (per_host_ - 1) * to_each, hosts_);
    loads_.back().beside = strangers > 0;
  }
  /// Of each rank in one of `circles` hosts, as much as it receives.
  void inside(double messages, double sent, double circles) {
    loads_.push_back({.kind = Load::Kind::inside,
                      .exact = exact_,
                      .messages = messages,
                      .sent = sent,
                      .received = sent,
                      .total = circles * per_host_ * sent,
                      .of_rank = sent});
  }
  /// Of each of `ranks` of a host, as much as it receives.
  void between(double messages, double sent, double ranks) {
    loads_.push_back({.kind = Load::Kind::between,
                      .exact = exact_,
                      .messages = messages,
                      .sent = ranks * sent,
                      .received = ranks * sent,
                      .total = hosts_ * ranks * sent,
                      .of_rank = sent});
  }

  /// One rank of each circle sends or receives all there is. Of ranks of all hosts the tree between
  /// hosts is above those inside.
  void root(Level level, double messages, double sent, double received, double total) {
    Load load{.kind = level == Level::inside ? Load::Kind::inside : Load::Kind::between,
              .exact = exact_,
              .messages = messages,
              .sent = sent,
              .received = received,
              .total = total,
              .of_rank = std::max(sent, received)};
    if (level == Level::all && hosts_ == 1) load.kind = Load::Kind::inside;
    if (level == Level::inside) load.total *= hosts_;
    if (level == Level::between) {
      load.sent *= active();
      load.received *= active();
      load.total *= active();
    }
    loads_.push_back(load);
  }

  void take(const Hop& hop) {
    const double ranks = size_of(hop.level);
    const double whole = messages_ * elements_;
    switch (hop.kind) {
      case Kind::to_owners:
        exchange(hop.level, whole / ranks);
        elements_ /= ranks;
        break;
      case Kind::to_root:
        root(hop.level, ranks - 1, whole, (ranks - 1) * whole, (ranks - 1) * whole);
        break;
      case Kind::to_all:
        exchange(hop.level, whole);
        break;
      case Kind::from_owners:
        exchange(hop.level, whole);
        elements_ *= ranks;
        break;
      default:
        root(hop.level, levels_of_tree(ranks), levels_of_tree(ranks) * whole, whole,
             (ranks - 1) * whole);
    }
    if (hop.merges()) messages_ *= ranks;
    if (hop.level == Level::inside) inside_is_rooted_ = hop.kind == Kind::to_root;
  }

  /// Partial sums, then sums, from neighbour to neighbour.
  void go_around(Level level) {
    const double ranks = size_of(level);
    const double part = elements_ / ranks;
    const double hops = 2 * (ranks - 1);
    compute(Load::Kind::encode, Device::own, part, ranks);
    if (level == Level::between) {
      between(hops, hops * part, active());
    } else if (level == Level::inside || hosts_ == 1) {
      inside(hops, hops * part, hosts_);
    } else {  // one edge of each host leads to the next
      between(hops, hops * part, 1);
      if (per_host_ > 1) {
        inside(hops, hops * part, hosts_);
        loads_.back().total = (ranks_ - hosts_) * hops * part;
        loads_.back().beside = true;
      }
    }
    compute(Load::Kind::decode, Device::own, part, hops);
  }

  /// Partial sums up a tree.
  void climb(Level level) {
    const double ranks = size_of(level);
    const double steps = levels_of_tree(ranks);
    compute(Load::Kind::encode, Device::own, elements_, 1);
    root(level, steps, elements_, steps * elements_, (ranks - 1) * elements_);
    compute(Load::Kind::decode, Device::own, elements_, steps);
    if (level == Level::inside) inside_is_rooted_ = true;
  }

  const double ranks_, hosts_, per_host_;
  double elements_;      // of each rank that takes part
  double messages_ = 1;  // for each of them, that nobody has added up
  bool inside_is_rooted_ = false;
  bool exact_ = false;  // the leg
  std::vector<Load> loads_;
};

}  // namespace

std::vector<Load> loads_of(const Option& option, std::size_t elements, const Cluster& cluster) {
  std::vector<Device> encodes, decodes;
  for (const Action& action : option.actions()) {
    if (action.move == Move::encode) encodes.push_back(action.device);
    if (action.move == Move::decode) decodes.push_back(action.device);
  }
  Walk walk(elements, cluster);
  std::size_t lossy = 0;
  for (const Leg& leg : option.legs()) {
    if (leg.exact) {
      walk.go(leg, Device::own, Device::own);
    } else {
      walk.go(leg, encodes[lossy], decodes[lossy]);
      ++lossy;
    }
  }
  return std::move(walk).loads();
}

std::vector<Load> loads_of(std::span<const Leg> legs, std::size_t elements,
                           const Cluster& cluster) {
  Walk walk(elements, cluster);
  for (const Leg& leg : legs) walk.go(leg, Device::own, Device::own);
  return std::move(walk).loads();
}

}  // namespace gradwire
