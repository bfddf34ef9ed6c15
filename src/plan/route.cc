#include "plan/route.h"

namespace gradwire {
namespace {

constexpr std::size_t kSmallBytes = 32768;  // up to here one hop is worth sending everything

}  // namespace

Route cheapest_route(const Traffic& traffic, std::uint32_t ranks) noexcept {
  const std::size_t to_all = bytes_to_all(traffic.data, ranks);
  const std::size_t by_owners = bytes_by_owners(traffic.data, traffic.sums, ranks);
  const bool one_hop = bytes_to_all(traffic.numbers, ranks) <= kSmallBytes || to_all < by_owners;
  return one_hop ? Route{"allgather", to_all} : Route{"sra", by_owners};
}

}  // namespace gradwire
