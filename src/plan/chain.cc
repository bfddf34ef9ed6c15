#include "plan/chain.h"

#include <cmath>

namespace gradwire {
namespace {

constexpr double kExactBytes = 4;

void add(Chain& chain, Resource resource, double seconds, bool beside = false) {
  if (seconds > 0) chain.push_back({resource, beside && !chain.empty(), seconds});
}

}  // namespace

ChainMaker::ChainMaker(const Costs& costs)
    : costs_(costs), exact_(costs.codec(Codec::parse("none"))) {}

Chain ChainMaker::make(std::span<const Load> loads, const MeasuredCodec& codec,
                       std::size_t elements) const {
  const auto count = static_cast<double>(elements);
  const auto threads = static_cast<double>(costs_.threads);
  Chain chain;
  bool fitted = false;
  for (const Load& load : loads) {
    const MeasuredCodec& measured = load.exact ? exact_ : codec;
    const double bytes = count * (load.exact ? kExactBytes : codec.bytes_per_element);
    switch (load.kind) {
      case Load::Kind::encode:
      case Load::Kind::decode: {
        const bool encodes = load.kind == Load::Kind::encode;
        const CostTable& table = encodes ? measured.encode : measured.decode;
        const auto at_once = static_cast<std::size_t>(std::ceil(load.elements * count));
        double seconds = load.times * table.at(at_once) / threads;
        if (encodes && !load.exact && !fitted) seconds += measured.preparation.at(elements);
        fitted = fitted || !load.exact;
        add(chain, load.device == Device::own ? Resource::codec : Resource::other, seconds,
            load.beside);
        break;
      }
      case Load::Kind::inside:
        add(chain, Resource::inside,
            load.messages * costs_.inside.seconds +
                std::max(load.sent, load.received) * bytes * costs_.inside.seconds_per_byte,
            load.beside);
        break;
      case Load::Kind::between: {
        const double latency = load.messages * costs_.between.seconds;
        const double per_element = bytes * costs_.between.seconds_per_byte;
        add(chain, Resource::sending, latency + load.sent * per_element, load.beside);
        add(chain, Resource::receiving, latency + load.received * per_element, true);
        break;
      }
    }
  }
  return chain;
}

std::array<double, kResources> busy_seconds(std::span<const Task> chain) noexcept {
  std::array<double, kResources> busy{};
  for (const Task& task : chain) busy[static_cast<std::size_t>(task.resource)] += task.seconds;
  return busy;
}

}  // namespace gradwire
