// Ranks in threads, connected by one transport: what the conformance suite runs on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace gradwire::test {

/// Makes the connected transports of `ranks` ranks. One line in the suite per transport.
struct PartyMaker {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(std::uint32_t ranks)> make;
};

std::vector<PartyMaker> party_makers();

inline constexpr std::size_t kPartyMessageBytes = std::size_t{8} << 20;

/// An inbox that keeps what it is told.
class Recorder final : public Inbox {
 public:
  bool wants(std::uint32_t peer, Tag tag) noexcept override {
    return !wants_filter || wants_filter(peer, tag);
  }
  void arrived(const Arrival& arrival) noexcept override { arrivals.push_back(arrival); }
  void sent(std::uint64_t ticket) noexcept override { tickets.push_back(ticket); }
  void failed(const Failure& failure) noexcept override { failures.push_back(failure); }

  std::function<bool(std::uint32_t, Tag)> wants_filter;
  std::vector<Arrival> arrivals;
  std::vector<std::uint64_t> tickets;
  std::vector<Failure> failures;
};

/// Makes progress, sleeping when there is nothing to do, until `done` or 20 s have passed; returns
/// whether it was done.
bool progress_until(Transport& transport, Inbox& inbox, const std::function<bool()>& done);

/// Runs `body(rank, transport)` in a thread per rank.
void run_party(std::vector<std::unique_ptr<Transport>>& transports,
               const std::function<void(std::uint32_t, Transport&)>& body);

}  // namespace gradwire::test
