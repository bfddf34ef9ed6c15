// Communicators of processes that mpirun started. Every process judges what it got.
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/checksum.h"
#include "gradwire/communicator.h"

namespace gradwire {
namespace {

using Numbers = std::vector<float>;

constexpr std::size_t kCount = 1'000'003;

std::unique_ptr<Communicator> connect(const std::string& transport) {
  return Communicator::connect({.store = "mpi", .network = {.transport = transport}});
}

void all_reduce(Communicator& ranks, Numbers& x, const std::string& codec) {
  const Tensor tensor{"x", {x.data(), x.size()}, Way::parse(codec)};
  ranks.all_reduce({&tensor, 1}, {.seed = 3}).wait();
}

/// Small integers: their sums are exact in fp32.
Numbers integers(std::uint32_t rank) {
  Numbers x(kCount);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>((i * 7 + rank * 13) % 31) - 15);
  }
  return x;
}

Numbers sum_of_all(std::uint32_t size) {
  Numbers sum(kCount);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    const Numbers x = integers(rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
  }
  return sum;
}

bool equal_on_all_ranks(Communicator& ranks, const Numbers& x) {
  const std::uint64_t hash = checksum(std::as_bytes(std::span(x)));
  std::vector<float> hashes(2 * ranks.size());
  std::memcpy(&hashes[2 * ranks.rank()], &hash, sizeof(hash));
  ranks.all_gather({"hashes", {hashes.data(), hashes.size()}}).wait();
  for (std::uint32_t rank = 1; rank < ranks.size(); ++rank) {
    if (std::memcmp(&hashes[0], &hashes[2 * rank], sizeof(hash)) != 0) return false;
  }
  return true;
}

void expect_sums(Communicator& ranks) {
  const Numbers sum = sum_of_all(ranks.size());
  Numbers exact = integers(ranks.rank());
  all_reduce(ranks, exact, "none");
  EXPECT_EQ(exact, sum);
  Numbers lossy = integers(ranks.rank());
  all_reduce(ranks, lossy, "grid:step=0.1");
  EXPECT_NE(lossy, sum);
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    error += (lossy[i] - sum[i]) * (lossy[i] - sum[i]);
    energy += sum[i] * sum[i];
  }
  EXPECT_LT(error / energy, 0.01);
  EXPECT_TRUE(equal_on_all_ranks(ranks, lossy));
}

class OverMpi : public testing::TestWithParam<const char*> {};

TEST_P(OverMpi, sums_are_exact_or_near_and_equal_on_all_ranks) {
  const auto ranks = connect(GetParam());
  ASSERT_EQ(ranks->size(), 4u) << "start it by mpirun -n 4";
  expect_sums(*ranks);
}

TEST_P(OverMpi, two_communicators_do_not_meet) {
  const auto one = connect(GetParam());
  const auto two = connect(GetParam());
  Numbers x(1000, 1);
  Numbers y(1000, 10);
  const Tensor tensors[] = {{"x", {x.data(), x.size()}}, {"y", {y.data(), y.size()}}};
  Work first = one->all_reduce({&tensors[0], 1});
  Work second = two->all_reduce({&tensors[1], 1});
  second.wait();
  first.wait();
  EXPECT_EQ(x, Numbers(1000, 4));
  EXPECT_EQ(y, Numbers(1000, 40));
}

TEST_P(OverMpi, who_leaves_is_named_and_a_new_communicator_works) {
  auto ranks = connect(GetParam());
  const std::uint32_t rank = ranks->rank();
  if (rank != 2) {
    Numbers x(100'000);
    try {
      all_reduce(*ranks, x, "none");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_failed);
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
  }
  ranks.reset();
  expect_sums(*connect(GetParam()));
}

TEST_P(OverMpi, who_stays_away_ends_the_operation_at_its_deadline) {
  const auto ranks = connect(GetParam());
  const auto others = connect(GetParam());
  if (ranks->rank() != 1) {
    Numbers x(100'000);
    const Tensor tensor{"x", {x.data(), x.size()}};
    Work work = ranks->all_reduce({&tensor, 1}, {.timeout = std::chrono::milliseconds(300)});
    EXPECT_THROW(work.wait(), Error);
  }
  others->barrier().wait();  // the others have given up
  EXPECT_THROW(ranks->barrier().wait(), Error);
}

INSTANTIATE_TEST_SUITE_P(Every, OverMpi, testing::Values("auto", "mpi"),
                         [](const auto& each) { return std::string(each.param); });

TEST(MpiStore, a_rank_that_is_not_mpis_is_refused) {
  try {
    Communicator::connect({.rank = 5, .size = 7, .store = "mpi"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("in MPI"), std::string::npos) << error.what();
  }
}

// Last: it changes the process. Shared memory inside a "host", mpi between: a network namespace of
// one's own is what another host looks like.
TEST(MpiBetweenHosts, shared_memory_inside_and_mpi_between) {
  auto ranks = connect("auto");
  const bool on_second_host = ranks->rank() >= 2;
  Numbers able{on_second_host && unshare(CLONE_NEWNET) != 0 ? 1.0F : 0.0F};
  all_reduce(*ranks, able, "none");
  if (able[0] > 0) GTEST_SKIP() << "only root can make network namespaces";
  ranks = connect("auto");
  expect_sums(*ranks);
  EXPECT_THROW(connect("shm"), Error);
}

}  // namespace
}  // namespace gradwire
