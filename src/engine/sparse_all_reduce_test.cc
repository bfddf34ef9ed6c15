// Sums of few numbers: what travels, what is kept, and how much of it as ranks are added.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

/// Many small integers and a few large ones, so that sums are exact and there is much to leave out.
Numbers few_large(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> small(-3, 3), large(-500, 500), chance(0, 99);
  Numbers x(count);
  for (float& value : x) {
    value = static_cast<float>(chance(random) == 0 ? large(random) : small(random));
  }
  return x;
}

struct Exchanged {
  std::vector<Numbers> results;  // by rank
  std::uint64_t most_sent = 0;   // by one rank, bytes
};

Exchanged exchange(RanksHere& ranks, std::vector<Numbers> x, const Way& way,
                   std::uint64_t step = 0) {
  std::vector<std::uint64_t> sent(ranks.size());
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers& own = x[me.rank()];
    const Tensor tensor{"x", {own.data(), own.size()}, way};
    Work work = me.all_reduce({&tensor, 1}, {.step = step});
    work.wait();
    sent[me.rank()] = work.statistics().sent_bytes;
  });
  return {std::move(x), *std::max_element(sent.begin(), sent.end())};
}

/// Exactly, since all that is added up is an integer, on the wire as well.
TEST(SparseAllReduce, results_and_residuals_are_exactly_the_sum_of_all_inputs) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kCount = 1000;
  constexpr std::uint64_t kSteps = 250;
  for (const char* codec : {"topk:density=0.01", "topk:density=0.02,select=search",
                            "topk:density=0.2,values=fp16", "randomk:density=0.05"}) {
    for (const std::string& algorithm : usable_algorithms(kRanks)) {
      if (algorithm == "hierarchical-exact") continue;  // on one host nothing is held back
      SCOPED_TRACE(std::string(codec) + ", " + algorithm);
      auto ranks = Communicator::in_process(kRanks, {.tuning = {.piece_elements = 512}});
      std::vector<double> missing(kCount);
      const auto take = [&](const Exchanged& exchanged) {
        for (const Numbers& result : exchanged.results) {
          ASSERT_TRUE(same_bits(result, exchanged.results[0]));
        }
        for (std::size_t i = 0; i < kCount; ++i) missing[i] -= exchanged.results[0][i];
      };
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        std::vector<Numbers> x;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          x.push_back(few_large(kCount, step * kRanks + rank));
          for (std::size_t i = 0; i < kCount; ++i) missing[i] += x[rank][i];
        }
        take(exchange(ranks, x, by(algorithm, codec + std::string("+feedback")), step));
      }
      EXPECT_NE(missing, std::vector<double>(kCount)) << "there was nothing to keep";
      take(exchange(ranks, {kRanks, Numbers(kCount)}, by(algorithm, "none+feedback"), kSteps));
      EXPECT_EQ(missing, std::vector<double>(kCount));
    }
  }
}

/// Of halves and quarters and so on, which are exact for so few steps.
TEST(SparseAllReduce, momentum_is_added_once_and_all_of_it_arrives) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kCount = 1000;
  constexpr std::uint64_t kSteps = 8;
  for (const std::string& algorithm : usable_algorithms(kRanks)) {
    SCOPED_TRACE(algorithm);
    auto ranks = Communicator::in_process(kRanks, {.tuning = {.piece_elements = 512}});
    std::vector<double> missing(kCount), speed(kCount);
    for (std::uint64_t step = 0; step <= kSteps; ++step) {
      std::vector<Numbers> x(kRanks, Numbers(kCount));
      const bool last = step == kSteps;  // brings out what was held back
      for (double& each : speed) each *= 0.5;
      for (std::uint32_t rank = 0; rank < kRanks && !last; ++rank) {
        x[rank] = few_large(kCount, step * kRanks + rank);
        for (std::size_t i = 0; i < kCount; ++i) speed[i] += x[rank][i];
      }
      const char* const way = last ? "none+feedback" : "topk:density=0.02+feedback:momentum=0.5";
      const auto arrived = exchange(ranks, x, by(algorithm, way), step);
      for (std::size_t i = 0; i < kCount; ++i) {
        missing[i] += (last ? 0 : speed[i]) - arrived.results[0][i];
      }
    }
    EXPECT_EQ(missing, std::vector<double>(kCount));
  }
}

TEST(SparseAllReduce, with_masking_what_is_sent_has_no_momentum) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kCount = 1000;
  for (const std::string& algorithm : usable_algorithms(kRanks)) {
    if (algorithm == "hierarchical-exact") continue;  // see below
    auto ranks = Communicator::in_process(kRanks, {.tuning = {.piece_elements = 512}});
    for (std::uint64_t step = 0; step < 5; ++step) {
      std::vector<Numbers> x;
      Numbers expected(kCount);
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        x.push_back(few_large(kCount, step * kRanks + rank));
        for (std::size_t i = 0; i < kCount; ++i) expected[i] += x[rank][i];
      }
      const auto arrived =
          exchange(ranks, x, by(algorithm, "topk:density=1+feedback:momentum=0.5,masking=1"), step);
      EXPECT_EQ(arrived.results[0], expected) << algorithm << ", step " << step;
    }
  }
}

/// Whoever hands its numbers on exactly does not know which of them a codec will send; the owner of
/// their sum does.
TEST(SparseAllReduce, with_masking_momentum_goes_on_where_numbers_travel_exactly) {
  constexpr std::uint32_t kRanks = 2;
  auto ranks = Communicator::in_process(kRanks);
  const Way way = by("hierarchical-exact", "topk:density=1+feedback:momentum=0.5,masking=1");
  double speed = 0;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto arrived = exchange(ranks, {Numbers(1000, 1), Numbers(1000, 1)}, way, step);
    speed = 0.5 * speed + 1;
    EXPECT_EQ(arrived.results[0], Numbers(1000, static_cast<float>(1 + speed))) << step;
  }
}

/// Of four ranks, owners send more numbers of sums than of their own; these do not count.
TEST(SparseAllReduce, a_threshold_is_not_used_again_when_few_numbers_exceed_it) {
  constexpr std::uint32_t kRanks = 4;
  constexpr std::size_t kCount = 100'000;
  for (const char* algorithm : {"sra", "allgather"}) {
    auto ranks = Communicator::in_process(kRanks);
    std::vector<std::uint64_t> sent;
    for (std::uint64_t step = 0; step < 3; ++step) {
      std::vector<Numbers> x;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        x.push_back(few_large(kCount, rank));
        for (float& value : x.back()) value *= step == 0 ? 1000 : 1;
      }
      const Way way = by(algorithm, "topk:density=0.001+feedback:reuse=8");
      sent.push_back(exchange(ranks, x, way, step).most_sent);
    }
    EXPECT_LT(sent[1], 0.9 * static_cast<double>(sent[0])) << algorithm;
    EXPECT_GT(sent[2], 0.95 * static_cast<double>(sent[0])) << algorithm;
  }
}

/// Each rank has its large numbers elsewhere.
Numbers like_a_gradient(std::uint32_t rank) {
  static const Numbers kAll = [] {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    Numbers x(4 << 20);
    for (float& value : x) value = normal(random) * normal(random);
    return x;
  }();
  Numbers own(kAll.size());
  std::rotate_copy(kAll.begin(), kAll.begin() + 100'003 * rank, kAll.end(), own.begin());
  return own;
}

std::uint64_t sent_by_a_rank(std::uint32_t count, const std::string& algorithm) {
  auto ranks = Communicator::in_process(count);
  std::vector<Numbers> x;
  for (std::uint32_t rank = 0; rank < count; ++rank) x.push_back(like_a_gradient(rank));
  return exchange(ranks, std::move(x), by(algorithm, "topk:density=0.001+feedback")).most_sent;
}

TEST(SparseAllReduce, owners_keep_traffic_from_growing_with_the_ranks) {
  const std::uint64_t few = sent_by_a_rank(4, "sra"), many = sent_by_a_rank(16, "sra");
  const std::uint64_t few_to_all = sent_by_a_rank(4, "allgather");
  const std::uint64_t many_to_all = sent_by_a_rank(16, "allgather");
  std::printf(
      "bytes per rank, 4 and 16 ranks: sra %lu, %lu (%.2f x); allgather %lu, %lu (%.2f x)\n", few,
      many, static_cast<double>(many) / static_cast<double>(few), few_to_all, many_to_all,
      static_cast<double>(many_to_all) / static_cast<double>(few_to_all));
  EXPECT_LE(static_cast<double>(many), 1.5 * static_cast<double>(few));
  EXPECT_GE(static_cast<double>(many_to_all), 4.5 * static_cast<double>(few_to_all));
  EXPECT_EQ(sent_by_a_rank(4, "auto"), few_to_all);
  EXPECT_EQ(sent_by_a_rank(16, "auto"), many);
}

TEST(SparseAllReduce, sums_that_fill_up_travel_whole) {
  constexpr std::size_t kCount = 100'000;
  auto ranks = Communicator::in_process(8);
  std::vector<Numbers> x;
  for (std::uint32_t rank = 0; rank < 8; ++rank) x.push_back(few_large(kCount, rank));
  const Exchanged exchanged =
      exchange(ranks, x, by("sra", "topk:density=0.25,select=exact+feedback"));
  std::size_t filled = 0;
  for (const float number : exchanged.results[0]) filled += number != 0 ? 1 : 0;
  EXPECT_GT(filled, kCount / 2);
}

TEST(SparseAllReduce, random_places_stay_unbiased_whoever_adds_up) {
  constexpr std::size_t kCount = 600;
  constexpr std::uint64_t kSteps = 2000;
  auto ranks = Communicator::in_process(2, {.tuning = {.piece_elements = 256}});
  for (const char* algorithm : {"sra", "allgather"}) {
    double mean = 0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Exchanged exchanged =
          exchange(ranks, {2, Numbers(kCount, 1.0f)},
                   by(algorithm, "randomk:density=0.1,scale=inverse"), step);
      for (const float number : exchanged.results[0]) mean += number / (kCount * kSteps);
    }
    // A result of 2 has a deviation of 6 at most, and there are 1.2 million of them.
    EXPECT_NEAR(mean, 2, 0.03) << algorithm;
  }
}

}  // namespace
}  // namespace gradwire
