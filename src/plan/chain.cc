#include "plan/chain.h"

#include <algorithm>
#include <cmath>

#include "plan/resources.h"

namespace gradwire {
namespace {

constexpr double kExactBytes = 4;

/// As the engine cuts tensors, but for limits of its memory.
double pieces_of(std::size_t elements, bool sparse, const Cluster& cluster) {
  const PieceLimits limits{
      .ranks = cluster.ranks(), .in_memory = cluster.hosts == 1, .lane_bytes = kLaneBytes};
  const std::size_t piece = piece_elements(limits, sparse);
  return std::ceil(static_cast<double>(elements) / static_cast<double>(piece));
}

/// A GPU encodes or decodes several messages in one launch, which takes as long as for one with all
/// their elements.
std::size_t all_of(double times, std::size_t elements) {
  return static_cast<std::size_t>(std::ceil(times * static_cast<double>(elements)));
}

/// Adds the tasks of one piece.
class PieceTasks {
 public:
  PieceTasks(const Costs& costs, Chain& chain) : costs_(costs), tasks_(chain.tasks) {}

  /// Tasks are for this load, until the next one begins.
  void begin(std::size_t load) { load_ = static_cast<std::uint8_t>(load); }

  void compute(Device device, double seconds) {
    const double at_once = device == Device::own ? static_cast<double>(costs_.threads) : 1;
    add(device == Device::own ? Resource::codec : Resource::other,
        seconds / at_once * costs_.processor_share());
  }

  /// `messages` one after the other; bytes by the busiest link, and of the busiest rank.
  void transfer(const LinkCost& link, const Load& load, double messages, double bytes_per_element) {
    const auto first = tasks_.size();
    const auto seconds = [&](double elements) {
      return messages * link.seconds + elements * bytes_per_element * link.seconds_per_byte;
    };
    if (load.kind == Load::Kind::inside) {
      add(Resource::inside, seconds(std::max(load.sent, load.received)), load.beside);
    } else {
      add(Resource::sending, seconds(load.sent), load.beside);
      add(Resource::receiving, seconds(load.received), tasks_.size() > first || load.beside);
    }
    const double handling =
        messages * link.cpu_seconds + load.of_rank * bytes_per_element * link.cpu_seconds_per_byte;
    add(Resource::codec, handling * costs_.processor_share(), tasks_.size() > first || load.beside);
  }

 private:
  void add(Resource resource, double seconds, bool beside = false) {
    if (seconds > 0) tasks_.push_back({resource, beside && !tasks_.empty(), seconds, load_});
  }

  const Costs& costs_;
  std::vector<Task>& tasks_;
  std::uint8_t load_ = 0;
};

}  // namespace

ChainMaker::ChainMaker(const Costs& costs, const Cluster& cluster)
    : costs_(costs), cluster_(cluster), exact_(costs.codec(Codec::parse("none"))) {}

Chain ChainMaker::make(std::span<const Load> loads, const Codec& codec,
                       const MeasuredCodec& measured, std::size_t elements) const {
  const double pieces = costs_.on_gpu() ? 1 : pieces_of(elements, codec.traits().sparse, cluster_);
  Chain chain;
  chain.pieces = static_cast<std::uint32_t>(std::min<double>(pieces, Chain::kMostPieces));
  const double count = static_cast<double>(elements) / chain.pieces;
  const double messages_each = pieces / chain.pieces;
  PieceTasks tasks(costs_, chain);
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const Load& load = loads[i];
    tasks.begin(i);
    const MeasuredCodec& by = load.exact ? exact_ : measured;
    const double bytes = count * (load.exact ? kExactBytes : measured.bytes_per_element);
    switch (load.kind) {
      case Load::Kind::encode:
      case Load::Kind::decode: {
        const bool encodes = load.kind == Load::Kind::encode;
        const auto at_once = static_cast<std::size_t>(std::ceil(load.elements * count));
        const bool own = load.device == Device::own;
        const CostTable& table =
            encodes ? (own ? by.encode : by.other_encode) : (own ? by.decode : by.other_decode);
        tasks.compute(load.device, own && costs_.on_gpu() ? table.at(all_of(load.times, at_once))
                                                          : load.times * table.at(at_once));
        if (encodes && own && !load.exact) {
          chain.preparation = measured.preparation.at(elements) * costs_.processor_share();
        }
        break;
      }
      case Load::Kind::inside:
        tasks.transfer(costs_.inside, load, messages_each * load.messages, bytes);
        break;
      case Load::Kind::between:
        tasks.transfer(costs_.between, load, messages_each * load.messages, bytes);
        break;
    }
  }
  return chain;
}

std::array<double, kResources> busy_seconds(const Chain& chain) noexcept {
  std::array<double, kResources> busy{};
  for (const Task& task : chain.tasks) {
    busy[static_cast<std::size_t>(task.resource)] += chain.pieces * task.seconds;
  }
  busy[static_cast<std::size_t>(Resource::codec)] += chain.preparation;
  return busy;
}

double seconds_alone(const Chain& chain) noexcept {
  double begin = 0, end = 0;
  std::array<double, kResources> busy{};
  for (const Task& task : chain.tasks) {
    if (!task.beside) begin = end;
    end = std::max(end, begin + task.seconds);
    busy[static_cast<std::size_t>(task.resource)] += task.seconds;
  }
  // Pieces behind the first follow one another where each has most to do.
  return chain.preparation + end + (chain.pieces - 1) * *std::ranges::max_element(busy);
}

}  // namespace gradwire
