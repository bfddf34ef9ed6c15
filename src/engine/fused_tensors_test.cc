// Tensors of one call: each has the bits that it would have alone.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

/// Of many sizes and ways, as in a bucket of a model.
struct Bucket {
  std::vector<Numbers> numbers;
  std::vector<Way> ways;

  explicit Bucket(std::uint32_t rank) {
    const char* const texts[] = {"uniform:bits=3",
                                 "none",
                                 "grid:step=1",
                                 "topk:density=0.05+feedback",
                                 "none",
                                 "sign+feedback+route:ring",
                                 "randomk:density=0.2",
                                 "uniform:bits=2+route:tree"};
    std::mt19937 random(3 + rank);
    std::normal_distribution<float> normal;
    for (const std::size_t count : {1u, 700u, 5'000u, 33'000u, 0u, 129u, 150'000u, 2'000u, 40u}) {
      for (const char* way : texts) {
        Numbers& x = numbers.emplace_back(count);
        for (float& value : x) value = normal(random);
        ways.push_back(Way::parse(way));
      }
    }
  }
  Tensor tensor(std::size_t i) {
    return {std::to_string(i), {numbers[i].data(), numbers[i].size()}, ways[i]};
  }
  /// The tensors [begin, end).
  std::vector<Tensor> tensors(std::size_t begin, std::size_t end) {
    std::vector<Tensor> some;
    for (std::size_t i = begin; i < end; ++i) some.push_back(tensor(i));
    return some;
  }
};

/// The sums after three steps, in calls of so many tensors, and the messages that they took.
struct Outcome {
  std::vector<Numbers> sums;
  std::uint64_t messages = 0;
};

Outcome exchange(std::uint32_t count, std::uint32_t per_host, std::size_t at_once,
                 std::uint32_t threads = 0) {
  auto ranks = Communicator::in_process(
      count, {.tuning = {.threads = threads, .piece_elements = 16384}}, per_host);
  std::vector<Outcome> outcomes(count);
  on_all_ranks(ranks, [&](Communicator& me) {
    for (std::uint64_t step = 0; step < 3; ++step) {
      Bucket bucket(me.rank());
      std::vector<Work> works;
      for (std::size_t i = 0; i < bucket.ways.size(); i += at_once) {
        const auto some = bucket.tensors(i, std::min(bucket.ways.size(), i + at_once));
        works.push_back(me.all_reduce(some, {.step = step, .average = true}));
      }
      for (Work& work : works) {
        work.wait();
        outcomes[me.rank()].messages += work.statistics().sent_messages;
      }
      outcomes[me.rank()].sums = bucket.numbers;
    }
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.sums, outcomes[0].sums);
  return outcomes[0];
}

TEST(FusedTensors, have_the_bits_that_they_have_alone) {
  for (const auto& [count, per_host] : {std::pair{1u, 1u}, {2u, 2u}, {3u, 3u}, {4u, 2u}}) {
    const Outcome alone = exchange(count, per_host, 1);
    for (const std::size_t at_once : {3u, 10u, 1000u}) {
      const Outcome fused = exchange(count, per_host, at_once);
      EXPECT_EQ(fused.sums, alone.sums) << count << " ranks, " << at_once << " at once";
      EXPECT_TRUE(count == 1 || fused.messages < alone.messages) << at_once;
    }
  }
}

TEST(FusedTensors, have_the_same_bits_with_any_number_of_threads) {
  const Outcome one = exchange(3, 3, 1000, 1);
  for (const std::uint32_t threads : {2u, 4u}) {
    EXPECT_EQ(exchange(3, 3, 1000, threads).sums, one.sums) << threads;
  }
}

TEST(FusedTensors, that_are_small_travel_in_one_message) {
  constexpr std::size_t kTensors = 30;
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x(kTensors * 2000, 1.0f);
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < kTensors; ++i) {
      tensors.push_back({std::to_string(i), {&x[2000 * i], 2000}, by("sra", "uniform:bits=4")});
    }
    Work work = me.all_reduce(tensors);
    work.wait();
    EXPECT_EQ(work.statistics().sent_messages, 2u);  // numbers to their owner, sums to all others
  });
}

/// Ways must be the same on all ranks. Where they are not, no tensor may be taken for another.
TEST(FusedTensors, of_ranks_that_differ_in_their_ways_are_an_error) {
  using Ways = std::vector<const char*>;
  const std::pair<Ways, Ways> cases[] = {{{"none", "fp16", "none"}, {"fp16", "none", "none"}},
                                         {{"none", "fp16", "none"}, {"none", "none", "fp16"}},
                                         {{"none", "none", "none"}, {"none", "none", "sign"}}};
  for (const auto& [first, second] : cases) {
    auto ranks = Communicator::in_process(2);
    on_all_ranks(ranks, [&, one = &first, other = &second](Communicator& me) {
      const Ways& ways = me.rank() == 0 ? *one : *other;
      Numbers x[] = {Numbers(100, 1), Numbers(100, 10), Numbers(100, 100)};
      std::vector<Tensor> tensors;
      for (std::size_t i = 0; i < 3; ++i) {
        tensors.push_back({std::to_string(i), {x[i].data(), 100}, Way::parse(ways[i])});
      }
      try {
        me.all_reduce(tensors).wait();
        FAIL() << "the sums are " << x[0][0] << ", " << x[1][0] << ", " << x[2][0];
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_failed) << error.what();
      }
    });
  }
}

}  // namespace
}  // namespace gradwire
