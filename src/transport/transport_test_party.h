// Ranks, connected by one transport: what the conformance suite runs on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/router.h"

namespace gradwire::test {

/// What a rank does. It may end its router to leave.
using Body = std::function<void(std::uint32_t me, std::unique_ptr<Router>& router)>;

/// Runs the body for every rank, each in a thread, and returns when all are done.
void run_in_threads(std::vector<std::unique_ptr<Router>>& routers, const Body& body);

/// A way to have connected ranks. One line in the suite per transport.
struct Party {
  std::string name;
  /// Runs the body for ranks 0 to `ranks` - 1, at most `kMaxRanks`, and returns when all are done:
  /// in a thread each, or, in every process of a job, for the rank that it is.
  std::function<void(std::uint32_t ranks, const Body& body)> run;
};

inline constexpr std::uint32_t kMaxRanks = 4;
inline constexpr std::size_t kPartyMessageBytes = std::size_t{8} << 20;

/// Those of `use_processes`, or else all transports with ranks in threads.
std::vector<Party> parties();
std::vector<Party> parties_in_threads();

/// Makes this process one rank of a job, whose processes all run the suite. A failure of any rank
/// shows in its own exit code. Rank and size are MPI's when the store is mpi. With a secret tcp is
/// encrypted.
void use_processes(const std::string& transport, const std::string& store,
                   const std::string& secret, std::uint32_t rank, std::uint32_t size);

/// An inbox that keeps what it is told.
class Recorder final : public Inbox {
 public:
  bool wants(std::uint32_t peer, Tag tag) noexcept override {
    return !wants_filter || wants_filter(peer, tag);
  }
  void arrived(const Arrival& arrival) noexcept override { arrivals.push_back(arrival); }
  void sent(std::uint64_t ticket) noexcept override { tickets.push_back(ticket); }
  void failed(const Failure& failure) noexcept override { failures.push_back(failure); }
  std::optional<std::uint32_t> waits_for() noexcept override {
    ++questions;
    return waiting;
  }
  void answered(std::uint32_t peer, std::optional<std::uint32_t> waits_for) noexcept override {
    answers.emplace_back(peer, waits_for);
  }

  std::function<bool(std::uint32_t, Tag)> wants_filter;
  std::vector<Arrival> arrivals;
  std::vector<std::uint64_t> tickets;
  std::vector<Failure> failures;
  std::optional<std::uint32_t> waiting;  // what it says when it is asked
  int questions = 0;
  std::vector<std::pair<std::uint32_t, std::optional<std::uint32_t>>> answers;
};

/// Makes progress, sleeping when there is nothing to do, until `done` or 20 s have passed; returns
/// whether it was done.
bool progress_until(Router& router, Inbox& inbox, const std::function<bool()>& done);

}  // namespace gradwire::test
