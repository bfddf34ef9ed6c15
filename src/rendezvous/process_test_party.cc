// Ranks as processes, started by mpirun, `gradwire hosts` or torchrun.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "gradwire/error.h"
#include "rendezvous/rendezvous.h"
#include "transport/mpi_world.h"
#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

Deadline in_a_minute() { return Clock::now() + std::chrono::minutes(1); }

/// A part of another store, so that one store serves all cases.
class Section final : public Store {
 public:
  Section(Store& whole, std::string name) : whole_(whole), name_(std::move(name)) {}
  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    whole_.set(name_ + key, value, deadline);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return whole_.get(name_ + key, deadline);
  }
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override {
    return whole_.add(name_ + key, amount, deadline);
  }

 private:
  Store& whole_;
  std::string name_;
};

/// This process. All processes of the job run the same cases in the same order.
class ProcessRank {
 public:
  ProcessRank(std::string transport, const std::string& store, std::string secret,
              std::uint32_t rank, std::uint32_t size)
      : transport_(std::move(transport)), secret_(std::move(secret)), rank_(rank), size_(size) {
    if (store == "mpi") {
      const MpiWorld world;
      rank_ = world.rank();
      size_ = world.size();
    }
    store_ = open_store(store, rank_, Clock::now() + std::chrono::minutes(10), secret_);
  }

  const std::string& transport() const { return transport_; }

  void run(std::uint32_t ranks, const Body& body) {
    ASSERT_LE(ranks, size_) << "start more processes";
    Section store(*store_, fmt::format("case{}-", ++cases_));
    RendezvousOptions options;
    options.me = rank_;
    options.count = size_;
    options.secret = secret_;
    options.transport = transport_;
    options.message_bytes = kPartyMessageBytes;
    options.deadline = in_a_minute();
    std::unique_ptr<Router> router = rendezvous(store, options).router;
    if (rank_ < ranks) body(rank_, router);
    serve_until_all_are_done(store, router.get());
  }

 private:
  /// Others may still wait for what this rank has to give back.
  void serve_until_all_are_done(Store& store, Router* router) {
    std::atomic<bool> all_done{false};
    std::thread waits([&] {
      try {
        meet_at(store, "done");
        if (rank_ == 0) meet_at(store, "seen");  // it may be the store: it leaves last
        if (rank_ != 0) store.set(fmt::format("seen{}", rank_), "", in_a_minute());
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
      all_done = true;
    });
    Recorder nobody;
    if (router != nullptr) progress_until(*router, nobody, [&] { return all_done.load(); });
    waits.join();
  }

  void meet_at(Store& store, const std::string& point) {
    store.set(point + std::to_string(rank_), "", in_a_minute());
    for (std::uint32_t rank = 0; rank < size_; ++rank) {
      store.get(point + std::to_string(rank), in_a_minute());
    }
  }

  std::string transport_;
  std::string secret_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::unique_ptr<Store> store_;
  unsigned cases_ = 0;
};

std::optional<ProcessRank> this_process;

}  // namespace

void use_processes(const std::string& transport, const std::string& store,
                   const std::string& secret, std::uint32_t rank, std::uint32_t size) {
  this_process.emplace(transport, store, secret, rank, size);
}

std::vector<Party> parties() {
  if (!this_process) return parties_in_threads();
  return {{this_process->transport(),
           [](std::uint32_t ranks, const Body& body) { this_process->run(ranks, body); }}};
}

}  // namespace gradwire::test
