#include "plan/candidates.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "plan/codec_error.h"

namespace gradwire {
namespace {

constexpr double kClassesPerOctave = 2;  // sizes of one class have the same front

const Codec& exact_codec() {
  static const Codec kExact = Codec::parse("none");
  return kExact;
}

bool lossy_computing(const Load& load) {
  return !load.exact && (load.kind == Load::Kind::encode || load.kind == Load::Kind::decode);
}

/// Whether a second one needs at least as much of everything.
bool beats(const Candidate& a, const Candidate& b) {
  if (a.encodings > b.encodings || a.seconds > b.seconds) return false;
  for (std::size_t i = 0; i < kResources; ++i) {
    if (a.busy[i] > b.busy[i]) return false;
  }
  return true;
}

double all_seconds(const Candidate& candidate) {
  return std::reduce(candidate.busy.begin(), candidate.busy.end(), candidate.seconds);
}

/// Those that nobody beats.
std::vector<Candidate> unbeaten(const std::vector<Candidate>& all) {
  // Whoever beats another needs less in sum, so it is seen before.
  std::vector<std::pair<double, std::size_t>> order;
  order.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) order.emplace_back(all_seconds(all[i]), i);
  std::ranges::sort(order);
  std::vector<Candidate> front;
  for (const auto& place : order) {
    const Candidate& each = all[place.second];
    const auto beaten = [&](const Candidate& other) { return beats(other, each); };
    if (std::ranges::none_of(front, beaten)) front.push_back(each);
  }
  std::ranges::stable_sort(front, [](const Candidate& a, const Candidate& b) {
    return std::pair(a.encodings, a.seconds) < std::pair(b.encodings, b.seconds);
  });
  return front;
}

}  // namespace

Candidates::Candidates(const Cluster& cluster, const Costs& costs, const WayLimits& limits)
    : cluster_(cluster), costs_(costs), maker_(costs, cluster) {
  codecs_.push_back({&exact_codec(), &costs.codec(exact_codec())});
  for (const Codec& codec : limits.codecs) codecs_.push_back({&codec, &costs.codec(codec)});
  std::vector<Option> options = limits.options.empty() ? all_options() : limits.options;
  for (Option& option : options) {
    const std::uint32_t encodings = option.encodings();
    if (encodings > limits.most_encodings) continue;
    std::vector<Load> loads = loads_of(option, 1, cluster);
    // What differs only in hops that nobody makes is the same.
    const auto same = [&](const Template& each) { return each.loads == loads; };
    if (std::ranges::any_of(options_, same)) continue;
    std::vector<std::uint16_t> kinds;
    for (const Load& load : loads) {
      const auto at = std::ranges::find(kinds_, load);
      kinds.push_back(static_cast<std::uint16_t>(at - kinds_.begin()));
      if (at == kinds_.end()) kinds_.push_back(load);
    }
    options_.push_back({std::move(option), encodings, std::move(loads), std::move(kinds)});
  }
  std::vector<double> errors;  // of one encoding, by codec
  for (const MeasuredWay& each : codecs_) {
    errors.push_back(limits.most_error && each.codec != &exact_codec() ? codec_error(*each.codec)
                                                                       : 0);
  }
  for (std::uint32_t i = 0; i < options_.size(); ++i) {
    const std::uint32_t encodings = options_[i].encodings;
    if (encodings == 0) ways_.push_back({i, 0});
    for (std::uint32_t codec = 1; encodings > 0 && codec < codecs_.size(); ++codec) {
      if (limits.most_error && encodings * errors[codec] > *limits.most_error) continue;
      ways_.push_back({i, codec});
    }
  }
}

const Candidates::Demands& Candidates::demands(std::uint32_t codec, std::size_t elements) {
  const auto [found, is_new] = demands_.try_emplace({codec, elements});
  Demands& demands = found->second;
  if (!is_new) return demands;
  const MeasuredWay& way = codecs_[codec];
  for (Load load : kinds_) {
    for (const Device device : {Device::own, Device::other}) {
      load.device = device;
      const Chain chain = maker_.make({&load, 1}, *way.codec, *way.measured, elements);
      demands.preparation = std::max(demands.preparation, chain.preparation);
      demands.pieces = chain.pieces;
      Demand demand;
      for (const Task& task : chain.tasks) {
        demand.duration = std::max(demand.duration, task.seconds);
        demand.busy[static_cast<std::size_t>(task.resource)] += chain.pieces * task.seconds;
      }
      (device == Device::own ? demands.own : demands.other).push_back(demand);
      if (!lossy_computing(load)) break;
    }
    if (!lossy_computing(load)) demands.other.push_back(demands.own.back());
  }
  return demands;
}

Candidate Candidates::candidate(std::uint32_t way, std::uint32_t elsewhere, std::size_t elements) {
  const auto [number, codec] = ways_[way];
  const Template& option = options_[number];
  const Demands& demands = this->demands(codec, elements);
  Candidate result{.way = way,
                   .elsewhere = elsewhere,
                   .codec = codec == 0 ? nullptr : codecs_[codec].codec,
                   .encodings = option.encodings,
                   .pieces = static_cast<std::uint32_t>(demands.pieces),
                   .elements = elements};
  double begin = 0, end = 0;
  bool prepared = false;
  std::uint32_t bit = 1;
  for (std::size_t i = 0; i < option.loads.size(); ++i) {
    const Load& load = option.loads[i];
    bool other = false;
    if (lossy_computing(load)) {
      other = (elsewhere & bit) != 0;
      bit <<= 1U;
      prepared |= !other && load.kind == Load::Kind::encode;
    }
    const Demand& demand = (other ? demands.other : demands.own)[option.kinds[i]];
    for (std::size_t r = 0; r < kResources; ++r) result.busy[r] += demand.busy[r];
    if (!load.beside) begin = end;
    end = std::max(end, begin + demand.duration);
  }
  const double most = *std::ranges::max_element(result.busy);
  const double preparation = prepared ? demands.preparation : 0;
  result.busy[static_cast<std::size_t>(Resource::codec)] += preparation;
  result.seconds = preparation + end + (demands.pieces - 1) / demands.pieces * most;
  return result;
}

void Candidates::add_placements(std::uint32_t way, std::size_t elements,
                                std::vector<Candidate>& to) {
  to.push_back(candidate(way, 0, elements));
  const auto [number, codec] = ways_[way];
  if (codec == 0 || !codecs_[codec].measured->has_other_device()) return;
  // Those first that take most off the first device for their time on the second.
  const Template& option = options_[number];
  const Demands& demands = this->demands(codec, elements);
  std::vector<std::pair<double, std::uint32_t>> order;
  std::uint32_t bit = 1;
  for (std::size_t i = 0; i < option.loads.size(); ++i) {
    if (!lossy_computing(option.loads[i])) continue;
    const std::size_t kind = option.kinds[i];
    order.emplace_back(demands.other[kind].duration / demands.own[kind].duration, bit);
    bit <<= 1U;
  }
  std::ranges::sort(order);
  std::uint32_t elsewhere = 0;
  for (const auto& [price, each] : order) {
    elsewhere |= each;
    to.push_back(candidate(way, elsewhere, elements));
  }
}

const std::vector<Candidate>& Candidates::front_of_class(std::size_t elements) {
  const double size = std::log2(static_cast<double>(std::max<std::size_t>(elements, 1)));
  const int number = static_cast<int>(std::round(size * kClassesPerOctave));
  const auto [found, is_new] = classes_.try_emplace(number);
  if (is_new) {
    const auto typical = static_cast<std::size_t>(std::exp2(number / kClassesPerOctave));
    std::vector<Candidate> all;
    for (std::uint32_t way = 0; way < ways_.size(); ++way) add_placements(way, typical, all);
    found->second = unbeaten(all);
  }
  return found->second;
}

const std::vector<Candidate>& Candidates::front(std::size_t elements) {
  const auto [found, is_new] = fronts_.try_emplace(elements);
  if (!is_new) return found->second;
  std::vector<Candidate> all;
  for (const Candidate& each : front_of_class(elements)) {
    all.push_back(candidate(each.way, each.elsewhere, elements));
  }
  found->second = unbeaten(all);
  return found->second;
}

const Candidate* Candidates::offloaded(const Candidate& from) {
  const auto [number, codec] = ways_[from.way];
  if (codec == 0 || !codecs_[codec].measured->has_other_device()) return nullptr;
  const auto [found, is_new] = offloaded_.try_emplace({from.way, from.elements});
  if (is_new) {
    const auto computing = std::ranges::count_if(options_[number].loads, lossy_computing);
    const std::uint32_t all = (1U << static_cast<std::uint32_t>(computing)) - 1;
    found->second = candidate(from.way, all, from.elements);
  }
  return &found->second;
}

const Chain& Candidates::chain_of(const Candidate& candidate) {
  const auto [found, is_new] =
      chains_.try_emplace({candidate.way, candidate.elsewhere, candidate.elements});
  if (!is_new) return found->second;
  const auto [number, codec] = ways_[candidate.way];
  std::vector<Load> loads = options_[number].loads;
  std::uint32_t bit = 1;
  for (Load& load : loads) {
    if (!lossy_computing(load)) continue;
    if ((candidate.elsewhere & bit) != 0) load.device = Device::other;
    bit <<= 1U;
  }
  found->second =
      maker_.make(loads, *codecs_[codec].codec, *codecs_[codec].measured, candidate.elements);
  return found->second;
}

/// Hops that nobody makes need no device, so not every action of an option has a load.
Option Candidates::option_of(const Candidate& candidate) const {
  const Template& option = options_[ways_[candidate.way].option];
  std::vector<Action> actions = option.option.actions();
  std::vector<Action*> moved;
  for (Action& action : actions) {
    if (candidate.elsewhere == 0) break;
    if (action.move != Move::encode && action.move != Move::decode) continue;
    action.device = Device::other;
    const std::vector<Load> loads = loads_of(Option(actions), 1, cluster_);
    action.device = Device::own;
    std::uint32_t bit = 1;
    bool elsewhere = false;
    for (const Load& load : loads) {
      if (!lossy_computing(load)) continue;
      elsewhere |= load.device == Device::other && (candidate.elsewhere & bit) != 0;
      bit <<= 1U;
    }
    if (elsewhere) moved.push_back(&action);
  }
  for (Action* action : moved) action->device = Device::other;
  return Option(actions);
}

}  // namespace gradwire
