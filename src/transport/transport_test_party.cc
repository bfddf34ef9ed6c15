#include "transport/transport_test_party.h"

#include <poll.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "net/test_authority.h"
#include "transport/inproc.h"
#include "transport/transport_kinds.h"

namespace gradwire::test {
namespace {

using Routers = std::vector<std::unique_ptr<Router>>;

/// Every rank connects in its own thread, as processes would.
Routers connect_all(std::uint32_t ranks,
                    const std::function<std::unique_ptr<Transport>(std::uint32_t)>& connect) {
  Routers routers(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t me = 0; me < ranks; ++me) {
    threads.emplace_back([&, me] { routers[me] = std::make_unique<Router>(connect(me), ranks); });
  }
  for (std::thread& thread : threads) thread.join();
  return routers;
}

std::vector<std::uint32_t> all_but(std::uint32_t me, std::uint32_t ranks) {
  std::vector<std::uint32_t> others;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (rank != me) others.push_back(rank);
  }
  return others;
}

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

Routers make_shm(std::uint32_t ranks) {
  const Job job = Job::random();
  std::vector<Listener> listeners;
  std::vector<std::vector<std::string>> names;
  for (std::uint32_t me = 0; me < ranks; ++me) {
    listeners.push_back(kShm.listen("", 0));
    names.push_back(listeners.back().addresses);
  }
  return connect_all(ranks, [&](std::uint32_t me) {
    return kShm.connect({.job = job,
                         .me = me,
                         .count = ranks,
                         .peers = all_but(me, ranks),
                         .addresses = names,
                         .message_bytes = kPartyMessageBytes,
                         .deadline = soon()},
                        std::move(listeners[me]));
  });
}

/// `tls`: of each rank.
Routers make_tcp_with(std::uint32_t ranks, const std::function<Tls(std::uint32_t rank)>& tls) {
  const Job job = Job::random();
  std::vector<Listener> listeners;
  std::vector<std::vector<std::string>> addresses;
  for (std::uint32_t me = 0; me < ranks; ++me) {
    listeners.push_back(listen_tcp("lo", 0));
    addresses.push_back(listeners.back().addresses);
  }
  return connect_all(ranks, [&](std::uint32_t me) {
    return kTcp.connect({.job = job,
                         .me = me,
                         .count = ranks,
                         .peers = all_but(me, ranks),
                         .addresses = addresses,
                         .message_bytes = kPartyMessageBytes,
                         .deadline = soon(),
                         .tls = tls(me)},
                        std::move(listeners[me]));
  });
}

Routers make_tcp(std::uint32_t ranks) {
  return make_tcp_with(ranks, [](std::uint32_t) { return nullptr; });
}

Routers make_tcp_with_key(std::uint32_t ranks) {
  return make_tcp_with(ranks, [](std::uint32_t) { return tls_by_key(); });
}

Routers make_tcp_with_certificates(std::uint32_t ranks) {
  const TestAuthority authority;
  return make_tcp_with(ranks, [&](std::uint32_t rank) {
    return tls_by_certificates(authority.issue(std::to_string(rank)));
  });
}

Party in_threads(std::string name, Routers (*make)(std::uint32_t ranks)) {
  return {std::move(name), [make](std::uint32_t ranks, const Body& body) {
            Routers routers = make(ranks);
            run_in_threads(routers, body);
          }};
}

}  // namespace

void run_in_threads(Routers& routers, const Body& body) {
  std::vector<std::thread> threads;
  std::atomic<std::size_t> done{0};
  for (std::uint32_t me = 0; me < routers.size(); ++me) {
    threads.emplace_back([&, me] {
      body(me, routers[me]);
      ++done;
      Recorder nobody;  // others may still wait for what this rank has to give back
      while (routers[me] && done < routers.size()) routers[me]->progress(nobody);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<Party> parties_in_threads() {
  return {in_threads("inproc",
                     [](std::uint32_t ranks) { return make_inproc(ranks, kPartyMessageBytes); }),
          in_threads("shm", make_shm), in_threads("tcp", make_tcp),
          in_threads("tcp_tls_by_key", make_tcp_with_key),
          in_threads("tcp_tls_by_certificates", make_tcp_with_certificates)};
}

bool progress_until(Router& router, Inbox& inbox, const std::function<bool()>& done) {
  const Deadline deadline = soon();
  while (!done()) {
    if (Clock::now() > deadline) return false;
    if (router.progress(inbox)) continue;
    if (done() || !router.arm()) continue;
    pollfd polled{router.event(), POLLIN, 0};
    poll(&polled, 1, 100);
  }
  return true;
}

}  // namespace gradwire::test
