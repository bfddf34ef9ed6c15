// What collectives promise beyond the sum: many at once, feedback, parts, roots, faults.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <random>

#include "base/clock.h"
#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

std::vector<Numbers> all_reduce(RanksHere& ranks, std::vector<Numbers> inputs,
                                const std::string& codec, const std::string& algorithm) {
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers& x = inputs[me.rank()];
    const Tensor tensor{"x", {x.data(), x.size()}, by(algorithm, codec)};
    me.all_reduce({&tensor, 1}, {.seed = 3}).wait();
  });
  return inputs;
}

TEST(AllReduce, several_tensors_of_all_dtypes_and_codecs_travel_together) {
  auto ranks = Communicator::in_process(3, {.tuning = {.piece_elements = 512}});
  std::vector<std::vector<Numbers>> floats(3);
  std::vector<std::vector<std::uint16_t>> halves(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    floats[rank] = {integers(1, rank), integers(1000, rank), integers(0, rank), integers(77, rank)};
    halves[rank].assign(300, 0x3f80);  // bf16 one
  }
  on_all_ranks(ranks, [&](Communicator& me) {
    std::vector<Tensor> tensors;
    const char* codecs[] = {"none", "uniform:bits=8", "grid", "none"};
    for (int i = 0; i < 4; ++i) {
      Numbers& x = floats[me.rank()][i];
      tensors.push_back({std::to_string(i), {x.data(), x.size()}, Way::parse(codecs[i])});
    }
    auto& half = halves[me.rank()];
    tensors.push_back({"half", {half.data(), half.size(), Dtype::bf16}, Way::parse("none")});
    me.all_reduce(tensors).wait();
  });
  EXPECT_EQ(floats[0][0], sum_of_all(1, 3));
  EXPECT_EQ(floats[0][3], sum_of_all(77, 3));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(floats[rank], floats[0]);
    EXPECT_EQ(halves[rank], std::vector<std::uint16_t>(300, 0x4040));  // three
  }
}

TEST(AllReduce, many_operations_are_under_way_at_once) {
  auto ranks = Communicator::in_process(4, {.tuning = {.piece_elements = 1024}});
  constexpr int kOperations = 100;
  std::vector<std::vector<Numbers>> x(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < kOperations; ++i) x[rank].push_back(integers(i * 37, rank));
  }
  on_all_ranks(ranks, [&](Communicator& me) {
    std::vector<Work> works;
    for (int i = 0; i < kOperations; ++i) {
      Numbers& own = x[me.rank()][i];
      const Tensor tensor{"x", {own.data(), own.size()}};
      works.push_back(me.all_reduce({&tensor, 1}));
    }
    for (Work& work : works) work.wait();
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < kOperations; ++i) ASSERT_EQ(x[rank][i], sum_of_all(i * 37, 4)) << i;
  }
}

TEST(AllReduce, sixty_four_ranks) {
  auto ranks = Communicator::in_process(64);
  std::vector<Numbers> inputs;
  for (std::uint32_t rank = 0; rank < 64; ++rank) inputs.push_back(integers(100'003, rank));
  for (const Numbers& result : all_reduce(ranks, inputs, "none", "sra")) {
    ASSERT_EQ(result, sum_of_all(100'003, 64));
  }
}

TEST(AllReduce, the_same_seed_gives_the_same_bits_and_another_one_others) {
  std::vector<Numbers> inputs;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    inputs.push_back(integers(3000, rank));
    for (float& value : inputs.back()) value *= 0.37f;
  }
  const auto run = [&](std::uint64_t seed, std::uint32_t lanes) {
    auto ranks = Communicator::in_process(3, {.tuning = {.lanes = lanes, .piece_elements = 1024}});
    auto x = inputs;
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers& own = x[me.rank()];
      const Tensor tensor{"x", {own.data(), own.size()}, by("sra", "uniform:bits=4")};
      me.all_reduce({&tensor, 1}, {.seed = seed}).wait();
    });
    return x[0];
  };
  EXPECT_EQ(run(1, 1), run(1, 4));
  EXPECT_NE(run(1, 1), run(2, 1));
}

TEST(AllReduce, an_average_is_the_sum_divided) {
  for (const std::uint32_t size : {1u, 2u, 3u, 4u, 6u}) {
    auto ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 512}});
    for (const std::string& algorithm : usable_algorithms(size)) {
      for (const std::size_t count : {0, 1, 127, 2000}) {
        std::vector<Numbers> results(size);
        on_all_ranks(ranks, [&](Communicator& me) {
          Numbers& own = results[me.rank()] = integers(count, me.rank());
          const Tensor tensor{"x", {own.data(), count}, by(algorithm)};
          me.all_reduce({&tensor, 1}, {.average = true}).wait();
        });
        const Numbers sum = sum_of_all(count, size);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_FLOAT_EQ(results[0][i], sum[i] / static_cast<float>(size)) << algorithm;
        }
        for (const Numbers& result : results) ASSERT_TRUE(same_bits(result, results[0]));
      }
    }
  }
}

TEST(AllReduce, an_average_of_half_precision_is_rounded_once) {
  constexpr std::uint16_t kOne = 0x3C00, kThree = 0x4200, kTwo = 0x4000;  // as f16
  auto ranks = Communicator::in_process(2);
  std::vector<std::vector<std::uint16_t>> x{{kOne, kThree}, {kThree, kOne}};
  on_all_ranks(ranks, [&](Communicator& me) {
    const Tensor tensor{"x", {x[me.rank()].data(), 2, Dtype::f16}};
    me.all_reduce({&tensor, 1}, {.average = true}).wait();
  });
  for (const auto& result : x) EXPECT_EQ(result, (std::vector{kTwo, kTwo}));
}

TEST(AllReduce, an_average_is_refused_where_there_is_no_sum) {
  auto ranks = Communicator::in_process(1);
  Numbers x(10);
  const Tensor tensor{"x", {x.data(), x.size()}};
  EXPECT_THROW(ranks[0]->broadcast({&tensor, 1}, 0, {.average = true}), Error);
  EXPECT_THROW(ranks[0]->all_gather(tensor, {.average = true}), Error);
  EXPECT_THROW(ranks[0]->barrier({.average = true}), Error);
}

TEST(AllReduce, workers_change_no_bit) {
  for (const char* codec : {"none", "uniform:bits=4", "grid:step=0.5"}) {
    for (const std::string& algorithm : usable_algorithms(3)) {
      const auto run = [&](std::uint32_t threads) {
        RanksHere ranks = Communicator::in_process(
            3, {.tuning = {.threads = threads, .piece_elements = 1 << 16}});
        std::vector<Numbers> inputs;
        for (std::uint32_t rank = 0; rank < 3; ++rank) inputs.push_back(integers(400'009, rank));
        return all_reduce(ranks, inputs, codec, algorithm);
      };
      const auto results = run(3);
      for (const Numbers& result : results) {
        ASSERT_TRUE(same_bits(result, results[0])) << codec << ", " << algorithm;
      }
      EXPECT_TRUE(same_bits(results[0], run(1)[0])) << codec << ", " << algorithm;
    }
  }
}

TEST(AllReduce, tensors_may_be_freed_after_a_failure_while_workers_compute) {
  RanksHere ranks =
      Communicator::in_process(3, {.tuning = {.threads = 3, .piece_elements = 1 << 16}});
  ranks[2].reset();
  ranks.pop_back();
  on_all_ranks(ranks, [&](Communicator& me) {
    std::vector<Work> works;
    std::vector<Numbers> x(4, Numbers(1'000'000, 1.0f));
    for (Numbers& numbers : x) {
      const Tensor tensor{"x", {numbers.data(), numbers.size()}, Way::parse("grid")};
      works.push_back(me.all_reduce({&tensor, 1}));
    }
    for (Work& work : works) EXPECT_THROW(work.wait(), Error);
  });
}

// ---------------------------------------------------------------------------------------------

TEST(Feedback, what_is_not_finite_arrives_once) {
  auto ranks = Communicator::in_process(2);
  for (const char* algorithm : {"sra", "allgather"}) {
    for (const bool bad : {true, false}) {
      std::vector<Numbers> x(2, Numbers(1000, 1.0f));
      if (bad) x[0][700] = x[1][100] = INFINITY;
      on_all_ranks(ranks, [&](Communicator& me) {
        Numbers& own = x[me.rank()];
        const Tensor tensor{"x", {own.data(), own.size()}, by(algorithm, "uniform+feedback")};
        me.all_reduce({&tensor, 1}).wait();
      });
      for (const std::size_t at : {100, 700}) {
        EXPECT_EQ(std::isfinite(x[0][at]), !bad) << algorithm << ", " << at;
      }
    }
  }
}

TEST(Feedback, is_refused_to_two_operations_at_once) {
  auto ranks = Communicator::in_process(2);
  Numbers x(10, 1.0f), y(10, 1.0f);
  const Tensor twice[] = {{"x", {x.data(), 10}, Way::parse("sign+feedback")},
                          {"x", {y.data(), 10}, Way::parse("sign+feedback")}};
  EXPECT_THROW(ranks[0]->all_reduce(twice), Error);
  on_all_ranks(ranks, [&](Communicator& me) {  // which leaves nothing behind
    for (int step = 0; step < 20; ++step) {
      Numbers own(10, 1.0f);
      const Tensor tensor{"x", {own.data(), own.size()}, Way::parse("none+feedback")};
      me.all_reduce({&tensor, 1}).wait();
      EXPECT_EQ(own, Numbers(10, 2.0f));
    }
  });
}

TEST(Feedback, is_refused_where_nothing_is_kept) {
  auto ranks = Communicator::in_process(1);
  Numbers x(10);
  const Tensor tensor{"x", {x.data(), x.size()}, Way::parse("sign+feedback")};
  EXPECT_THROW(ranks[0]->all_gather(tensor), Error);
  EXPECT_THROW(ranks[0]->broadcast({&tensor, 1}, 0), Error);
}

TEST(Feedback, one_rank_alone_keeps_momentum_and_nothing_else) {
  auto ranks = Communicator::in_process(1);
  for (const float expected : {1.0f, 1.5f, 1.75f}) {
    Numbers x(10, 1.0f);
    const Tensor tensor{"x", {x.data(), x.size()}, Way::parse("sign+feedback:momentum=0.5")};
    ranks[0]->all_reduce({&tensor, 1}, {.average = true}).wait();
    EXPECT_EQ(x, Numbers(10, expected));
  }
}

TEST(Feedback, of_nothing_is_nothing) {
  for (const std::uint32_t count : {1u, 2u}) {
    auto ranks = Communicator::in_process(count);
    on_all_ranks(ranks, [&](Communicator& me) {
      const Tensor tensor{"x", {nullptr, 0}, Way::parse("topk+feedback:momentum=0.5")};
      EXPECT_NO_THROW(me.all_reduce({&tensor, 1}).wait());
    });
  }
}

TEST(Feedback, residuals_survive_a_new_communicator) {
  constexpr std::size_t kCount = 1000;
  const auto inputs = [](std::uint32_t rank) {
    Numbers x = integers(kCount, rank);
    for (float& value : x) value *= 0.37f;
    return x;
  };
  const auto step = [&](RanksHere& ranks) {
    std::vector<Numbers> x;
    for (std::uint32_t rank = 0; rank < 2; ++rank) x.push_back(inputs(rank));
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers& own = x[me.rank()];
      const Tensor tensor{"x", {own.data(), kCount}, by("sra", "sign+feedback")};
      me.all_reduce({&tensor, 1}).wait();
    });
    return x[0];
  };
  auto ranks = Communicator::in_process(2);
  const Numbers first = step(ranks);
  auto resumed = Communicator::in_process(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    resumed[rank]->load_residuals(ranks[rank]->save_residuals());
  }
  EXPECT_EQ(step(resumed), step(ranks));
  auto fresh = Communicator::in_process(2);
  EXPECT_EQ(step(fresh), first);
  EXPECT_NE(step(ranks), first);
}

// ---------------------------------------------------------------------------------------------

TEST(ReduceScatter, every_rank_gets_its_part_of_the_sum) {
  for (const std::uint32_t size : {1u, 2u, 3u, 7u}) {
    auto ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 1024}});
    for (const std::size_t part : {0, 1, 127, 1000, 4097}) {
      std::vector<Numbers> x;
      for (std::uint32_t rank = 0; rank < size; ++rank) x.push_back(integers(part * size, rank));
      on_all_ranks(ranks, [&](Communicator& me) {
        Numbers& own = x[me.rank()];
        me.reduce_scatter({"x", {own.data(), own.size()}}).wait();
      });
      const Numbers sum = sum_of_all(part * size, size);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        for (std::size_t i = rank * part; i < (rank + 1) * part; ++i) {
          ASSERT_EQ(x[rank][i], sum[i]) << size << " ranks, part " << part;
        }
      }
    }
  }
}

TEST(ReduceScatter, an_average_is_the_sum_divided) {
  auto ranks = Communicator::in_process(3, {.tuning = {.piece_elements = 1024}});
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x = integers(3 * 4097, me.rank());
    me.reduce_scatter({"x", {x.data(), x.size()}}, {.average = true}).wait();
    const Numbers sum = sum_of_all(x.size(), 3);
    for (std::size_t i = me.rank() * 4097; i < (me.rank() + 1) * 4097; ++i) {
      ASSERT_FLOAT_EQ(x[i], sum[i] / 3);
    }
  });
}

TEST(AllGather, every_part_reaches_every_rank) {
  for (const std::uint32_t size : {1u, 2u, 3u, 7u}) {
    auto ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 1024}});
    for (const std::size_t part : {0, 1, 127, 1000, 4097}) {
      std::vector<Numbers> x;
      for (std::uint32_t rank = 0; rank < size; ++rank) x.push_back(integers(part * size, rank));
      Numbers expected(part * size);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = x[i / part][i];
      on_all_ranks(ranks, [&](Communicator& me) {
        Numbers& own = x[me.rank()];
        me.all_gather({"x", {own.data(), own.size()}}).wait();
      });
      for (const Numbers& result : x) ASSERT_EQ(result, expected);
    }
  }
}

TEST(Broadcast, everybody_ends_with_what_the_root_decodes) {
  for (const std::uint32_t size : {1u, 2u, 5u, 8u}) {
    auto ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 1024}});
    for (const std::uint32_t root : {0u, size - 1}) {
      for (const char* codec : {"none", "grid"}) {
        std::vector<Numbers> x;
        for (std::uint32_t rank = 0; rank < size; ++rank) x.push_back(integers(5000, rank));
        const Numbers before = x[root];
        on_all_ranks(ranks, [&](Communicator& me) {
          Numbers& own = x[me.rank()];
          const Tensor tensor{"x", {own.data(), own.size()}, Way::parse(codec)};
          me.broadcast({&tensor, 1}, root).wait();
        });
        if (std::string(codec) == "none") {
          EXPECT_EQ(x[root], before);
        }
        for (const Numbers& result : x) ASSERT_TRUE(same_bits(result, x[root]));
      }
    }
  }
}

TEST(Barrier, nobody_leaves_before_all_have_come) {
  auto ranks = Communicator::in_process(6);
  std::atomic<int> come{0};
  on_all_ranks(ranks, [&](Communicator& me) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      me.barrier().wait();
      EXPECT_GE(come.load(), 6 * round);
      me.barrier().wait();
    }
  });
}

// ---------------------------------------------------------------------------------------------

Work start_sum(Communicator& me, Numbers& x, std::chrono::milliseconds timeout = {}) {
  const Tensor tensor{"x", {x.data(), x.size()}};
  return me.all_reduce({&tensor, 1}, {.timeout = timeout});
}

TEST(Work, callbacks_come_once_when_the_operation_ends_or_has_ended) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers first = integers(1000, me.rank()), second = first;
    std::promise<void> both;
    std::atomic<int> calls = 0;
    Work work = start_sum(me, first);
    work.on_done([&](const Error* error) {  // may start what comes next
      EXPECT_EQ(error, nullptr);
      ++calls;
      start_sum(me, second).on_done([&](const Error*) {
        ++calls;
        both.set_value();
      });
    });
    both.get_future().wait();
    work.on_done([&](const Error* error) { calls += error == nullptr ? 10 : 100; });
    EXPECT_EQ(calls, 12);
    EXPECT_TRUE(same_bits(first, sum_of_all(1000, 2)));
    EXPECT_TRUE(same_bits(second, sum_of_all(1000, 2)));
  });
}

TEST(Work, callbacks_get_the_error) {
  auto ranks = Communicator::in_process(2);
  Numbers x = integers(1000, 0);
  std::promise<std::string> said;
  Work work = start_sum(*ranks[0], x, std::chrono::milliseconds(50));
  work.on_done([&](const Error* error) { said.set_value(error ? error->what() : ""); });
  const std::string error = said.get_future().get();
  EXPECT_NE(error.find("rank 1 held up all_reduce"), std::string::npos) << error;
}

/// A store that a program has of its own.
class SharedMap final : public Store {
 public:
  void set(const std::string& key, const std::string& value, Deadline) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.contains(key); })) {
      throw Error(ErrorCode::timeout, "nobody set " + key);
    }
    return values_[key];
  }
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline) override {
    const std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;     // guarded by mutex_
  std::map<std::string, std::int64_t> counters_;  // guarded by mutex_
};

TEST(Connect, ranks_find_one_another_through_a_store_of_the_callers) {
  SharedMap store;
  constexpr std::uint32_t kRanks = 3;
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto me = Communicator::connect({.rank = rank, .size = kRanks}, store);
      Numbers x = integers(1000, rank);
      start_sum(*me, x).wait();
      EXPECT_TRUE(same_bits(x, sum_of_all(1000, kRanks)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Connect, who_does_not_come_through_the_callers_store_is_named) {
  SharedMap store;
  try {
    Communicator::connect({.rank = 0, .size = 2, .timeout = std::chrono::milliseconds(50)}, store);
    FAIL() << "connected alone";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
  }
}

TEST(Connect, connecting_may_have_less_time_than_operations) {
  SharedMap store;
  const auto begun = Clock::now();
  try {
    Communicator::connect({.rank = 0,
                           .size = 2,
                           .timeout = std::chrono::seconds(30),
                           .connect_timeout = std::chrono::milliseconds(50)},
                          store);
    FAIL() << "connected alone";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
  }
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
}

TEST(Faults, a_rank_that_never_calls_is_named_on_all_others) {
  auto ranks = Communicator::in_process(4, {.timeout = std::chrono::milliseconds(2000)});
  on_all_ranks(ranks, [&](Communicator& me) {
    if (me.rank() == 2) return;
    Numbers x(100);
    const Tensor tensor{"x", {x.data(), x.size()}};
    try {
      me.all_reduce({&tensor, 1}).wait();
      ADD_FAILURE() << "rank " << me.rank() << " got a result";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
  });
}

TEST(Faults, ranks_of_a_group_are_named_as_the_job_knows_them) {
  auto ranks = Communicator::in_process(
      3, {.job_ranks = {0, 5, 7}, .timeout = std::chrono::milliseconds(1000)});
  on_all_ranks(ranks, [&](Communicator& me) {
    if (me.rank() == 2) return;
    try {
      me.barrier().wait();
      ADD_FAILURE() << "rank " << me.rank() << " got through";
    } catch (const Error& error) {
      const std::string text = error.what();
      const std::string_view job = "(rank 2 of this group is rank 7 of the job)";
      EXPECT_TRUE(text.starts_with("rank 2 held up barrier")) << text;
      EXPECT_TRUE(text.ends_with(job)) << text;  // once, also by who was told by another rank
      EXPECT_EQ(text.find(job), text.rfind(job)) << text;
    }
  });
  EXPECT_THROW(Communicator::in_process(3, {.job_ranks = {0, 1}}), Error);
}

TEST(Faults, a_rank_that_never_calls_is_named_also_by_those_who_wait_for_others) {
  RanksHere ranks = Communicator::in_process(6, {.timeout = std::chrono::milliseconds(500)});
  on_all_ranks(ranks, [&](Communicator& me) {
    if (me.rank() == 2) return;
    Numbers x(100'000);
    const Tensor tensor{"x", {x.data(), x.size()}, by("ring")};
    // Rank 0 waits for 5, which waits for 4, …, and is late before all others.
    const auto timeout = std::chrono::milliseconds(me.rank() == 0 ? 500 : 5000);
    try {
      me.all_reduce({&tensor, 1}, {.timeout = timeout}).wait();
      ADD_FAILURE() << "rank " << me.rank() << " got a result";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2 held up all_reduce"), std::string::npos)
          << error.what();
    }
  });
}

TEST(Faults, a_rank_that_takes_nothing_is_named_by_who_only_sends) {
  RanksHere ranks = Communicator::in_process(
      3, {.tuning = {.piece_elements = 1024}, .timeout = std::chrono::milliseconds(500)});
  on_all_ranks(ranks, [&](Communicator& me) {
    if (me.rank() == 1) return;
    Numbers x(100'000);
    const Tensor tensor{"x", {x.data(), x.size()}};
    try {
      me.broadcast({&tensor, 1}, 0).wait();
      EXPECT_EQ(me.rank(), 2u) << "all that it was sent may have come";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 held up broadcast"), std::string::npos)
          << error.what();
    }
  });
}

TEST(Faults, a_rank_that_leaves_is_named_on_all_others) {
  auto ranks = Communicator::in_process(4);
  ranks[1].reset();
  ranks.erase(ranks.begin() + 1);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x(100'000);
    const Tensor tensor{"x", {x.data(), x.size()}};
    for (int i = 0; i < 2; ++i) {
      try {
        me.all_reduce({&tensor, 1}).wait();
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Faults, unlike_counts_are_an_error_that_says_so) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x(1000 + me.rank());
    const Tensor tensor{"x", {x.data(), x.size()}};
    try {
      me.all_reduce({&tensor, 1}).wait();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("same"), std::string::npos) << error.what();
    }
  });
}

/// What the ranks say when rank 2 makes another call than the two others.
void expect_another_call(const Tensor& usual, const OperationOptions& usually, const Tensor& other,
                         const OperationOptions& otherwise) {
  auto ranks = Communicator::in_process(3, {.timeout = std::chrono::seconds(20)});
  const auto begun = Clock::now();
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x(1000);
    Tensor tensor = me.rank() == 2 ? other : usual;
    tensor.view = {x.data(), x.size()};
    try {
      me.all_reduce({&tensor, 1}, me.rank() == 2 ? otherwise : usually).wait();
      me.barrier().wait();  // who has done its part hears of it later
      ADD_FAILURE() << "rank " << me.rank() << " noticed nothing";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("makes another call than all_reduce on rank"),
                std::string::npos)
          << error.what();
    }
  });
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(10));
}

TEST(Faults, calls_that_differ_in_what_messages_do_not_tell_are_an_error) {
  const Tensor x{.name = "x"}, y{.name = "y"};
  expect_another_call(x, {}, y, {});
  expect_another_call(x, {}, x, {.average = true});
  expect_another_call(x, {.seed = 1}, x, {.seed = 2});
}

TEST(Faults, calls_by_different_algorithms_are_an_error) {
  for (const char* usual : {"sra", "ring", "tree", "allgather"}) {
    for (const char* other : {"sra", "ring", "tree", "allgather"}) {
      if (usual == other) continue;
      SCOPED_TRACE(std::string(usual) + " and " + other);
      expect_another_call({.name = "x", .way = by(usual)}, {}, {.name = "x", .way = by(other)}, {});
    }
  }
}

TEST(Faults, a_route_that_cannot_be_taken_is_refused_at_once) {
  auto ranks = Communicator::in_process(2);
  Numbers x(10), y(10);
  const auto to = [](Numbers& numbers, const char* route) {
    return Tensor{"x", {numbers.data(), numbers.size()}, by(route)};
  };
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::vector<Tensor> unknown{to(x, "snake")};
  EXPECT_NE(refused([&] { ranks[0]->all_reduce(unknown); }), "");
  const std::vector<Tensor> parts{to(x, "sra"), to(y, "sra")}, others{to(x, "ring"), to(y, "ring")};
  const std::vector<Tensor> mixed{parts[0], others[0], parts[1], others[1]};
  EXPECT_NE(refused([&] { ranks[0]->all_gather(mixed); }), "");
  EXPECT_NE(refused([&] { ranks[0]->reduce_scatter(to(x, "tree")); }), "");
  EXPECT_NE(refused([&] { ranks[0]->all_gather(to(x, "hierarchical")); }), "");
  const Tensor tensor = to(x, "sra");
  EXPECT_NE(refused([&] { ranks[0]->broadcast({&tensor, 1}, 0); }), "");
}

}  // namespace
}  // namespace gradwire
