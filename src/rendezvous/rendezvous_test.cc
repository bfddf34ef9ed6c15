#include "rendezvous/rendezvous.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/addresses.h"
#include "net/tcp_test_helpers.h"
#include "net/test_authority.h"
#include "transport/transport_test_party.h"

namespace gradwire::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kRanks = 3;

std::string free_port() {
  const std::string address = listen_tcp("127.0.0.1", 0).addresses[0];
  return address.substr(address.find(' ') + 1);
}

RendezvousOptions options_of(std::uint32_t rank, std::uint32_t count, int timeout_ms) {
  RendezvousOptions options;
  options.me = rank;
  options.count = count;
  options.message_bytes = kPartyMessageBytes;
  options.deadline = in(timeout_ms);
  return options;
}

/// One directory that all ranks open anew in every life, as new processes do.
class Folder {
 public:
  ~Folder() { fs::remove_all(path_); }
  std::string store() const { return "file:" + path_ + "/store"; }
  /// The lines of what rank 1 told the others.
  std::vector<std::string> card() const {
    std::vector<std::string> lines;
    for (const auto& entry : fs::directory_iterator(path_ + "/store")) {
      const std::string name = entry.path().filename();
      if (name.size() < 32 || !name.ends_with("-1")) continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
    return lines;
  }

 private:
  static std::string made() {
    std::string path = fs::temp_directory_path() / "gradwire-XXXXXX";
    return mkdtemp(path.data());
  }
  std::string path_ = made();
};

/// What went wrong, if anything, for every rank: what `body` threw in its thread.
std::vector<std::string> on_ranks(std::uint32_t count,
                                  const std::function<void(std::uint32_t)>& body) {
  std::vector<std::future<std::string>> threads;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    threads.push_back(std::async(std::launch::async, [&body, rank] {
      try {
        body(rank);
        return std::string();
      } catch (const Error& error) {
        return std::string(error.what());
      }
    }));
  }
  std::vector<std::string> errors;
  for (auto& each : threads) errors.push_back(each.get());
  return errors;
}

/// All ranks meet, and every one hears from rank 0. Rank 0 comes last, so that the others find what
/// an earlier life may have left.
void expect_to_meet(const std::function<std::shared_ptr<Store>(std::uint32_t)>& open,
                    const std::string& transport) {
  const auto errors = on_ranks(kRanks, [&](std::uint32_t rank) {
    const auto store = rank == 0 ? nullptr : open(rank);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    RendezvousOptions options = options_of(rank, kRanks, 10'000);
    options.transport = transport;
    const auto own = rendezvous(rank == 0 ? *open(0) : *store, options).router;
    std::vector<std::byte> elsewhere(100);
    const auto memory = own->send_memory();
    Recorder inbox;
    for (std::uint32_t peer = 1; rank == 0 && peer < kRanks; ++peer) {
      own->send(peer, 7, (memory.empty() ? std::span(elsewhere) : memory).first(100), peer);
    }
    const std::size_t arrivals = rank == 0 ? 0 : 1;
    const std::size_t tickets = rank == 0 ? kRanks - 1 : 0;
    EXPECT_TRUE(progress_until(*own, inbox, [&] {
      for (const Arrival& each : inbox.arrivals) own->release(each);
      return inbox.arrivals.size() == arrivals && inbox.tickets.size() == tickets;
    }));
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

TEST(Lives, ranks_meet_again_in_the_same_directory) {
  const Folder folder;
  for (int life = 0; life < 3; ++life) {
    for (const char* transport : {"auto", "tcp"}) {
      expect_to_meet(
          [&](std::uint32_t rank) { return open_store(folder.store(), rank, in(10'000)); },
          transport);
    }
  }
}

TEST(Lives, ranks_meet_again_through_stores_that_they_keep) {
  const Folder folder;
  std::vector<std::shared_ptr<Store>> kept;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    kept.push_back(open_store(folder.store(), rank, in(10'000)));
  }
  for (int life = 0; life < 3; ++life) {
    expect_to_meet([&](std::uint32_t rank) { return kept[rank]; }, "auto");
  }
}

TEST(Lives, ranks_meet_again_at_the_same_port) {
  const std::string store = "tcp:127.0.0.1:" + free_port();
  const auto errors = on_ranks(kRanks, [&](std::uint32_t rank) {
    for (int life = 0; life < 10; ++life) {  // each as soon as it can
      const auto own = open_store(store, rank, in(10'000));
      rendezvous(*own, options_of(rank, kRanks, 10'000));
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

TEST(Lives, a_rank_that_has_come_more_often_is_named_by_all) {
  const Folder folder;
  const auto meet = [&](std::uint32_t rank, int timeout_ms) {
    const auto store = open_store(folder.store(), rank, in(timeout_ms));
    rendezvous(*store, options_of(rank, 2, timeout_ms));
  };
  EXPECT_THROW(meet(1, 50), Error);
  const Deadline limit = in(5000);
  const auto errors = on_ranks(2, [&](std::uint32_t rank) { meet(rank, 1000); });
  EXPECT_LT(Clock::now(), limit);
  EXPECT_NE(errors[0].find("it has come to this store 2 times and rank 0 1 times"),
            std::string::npos)
      << errors[0];
  EXPECT_NE(errors[1].find("rank 0 did not come"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("it has come to this store 1 times and rank 1 2 times"),
            std::string::npos)
      << errors[1];
}

/// Other builds read these lines, too.
TEST(Cards, have_lines_for_domain_terms_shared_memory_and_tcp_addresses) {
  for (const std::string transport : {"auto", "shm", "tcp"}) {
    const Folder folder;
    expect_to_meet([&](std::uint32_t rank) { return open_store(folder.store(), rank, in(10'000)); },
                   transport);
    const auto lines = folder.card();
    ASSERT_GE(lines.size(), 3u) << transport;
    EXPECT_EQ(lines[1], "3 ranks, no secret and no encryption");
    EXPECT_EQ(lines[2].starts_with("gradwire-"), transport != "tcp") << lines[2];
    EXPECT_EQ(lines[2].empty(), transport == "tcp") << lines[2];
    EXPECT_EQ(lines.size() > 3, transport != "shm");
    EXPECT_TRUE(transport == "shm" || lines.back().starts_with("127.0.0.1 ")) << lines.back();
  }
}

TEST(Terms, that_differ_are_reported_by_all_ranks_also_when_rank_0_serves_the_store) {
  const TestAuthority authority;
  const CertificateFiles files = authority.issue("2");
  int reports = 0;
  constexpr int kTimes = 50;
  for (int i = 0; i < kTimes; ++i) {
    const std::string store = "tcp:127.0.0.1:" + free_port();
    const auto errors = on_ranks(kRanks, [&](std::uint32_t rank) {
      const auto own = open_store(store, rank, in(20'000));
      RendezvousOptions options = options_of(rank, kRanks, 20'000);
      if (rank == 2) options.encryption.files = files;
      rendezvous(*own, options);
    });
    for (const std::string& error : errors) {
      const bool reported = error.find("ranks, no secret and") != std::string::npos;
      reports += reported;
      if (!reported) std::cout << error << "\n";
    }
  }
  EXPECT_EQ(reports, kTimes * static_cast<int>(kRanks));
}

TEST(Terms, other_numbers_of_ranks_are_reported_at_once_by_who_has_the_smallest) {
  const Folder folder;
  const auto errors = on_ranks(2, [&](std::uint32_t rank) {
    const auto own = open_store(folder.store(), rank, in(2000));
    rendezvous(*own, options_of(rank, 2 + rank, 2000));
  });
  EXPECT_EQ(
      errors[0],
      "rank 0 was given 2 ranks, no secret and no encryption, and rank 1 3 ranks, no secret "
      "and no encryption: give all ranks the same number of ranks, secret and encryption, a trace "
      "to all or to none, and jobs of other sizes other stores");
  EXPECT_NE(errors[1].find("rank 2 did not come"), std::string::npos) << errors[1];
}

}  // namespace
}  // namespace gradwire::test
