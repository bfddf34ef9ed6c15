// Feedback in all_reduces: nothing is lost over many steps, and what is not finite does no harm.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/engine_test_ranks.h"
#include "feedback/residuals.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr std::size_t kCount = 1300;

/// A tensor of any dtype.
struct Values {
  Dtype dtype;
  std::vector<std::byte> memory;

  Values(const Numbers& numbers, Dtype as) : dtype(as), memory(numbers.size() * size_of(as)) {
    kernels::cast({numbers.data(), numbers.size()}, view(), Into::assign);
  }
  TensorView view() { return {memory.data(), memory.size() / size_of(dtype), dtype}; }
  Numbers numbers() {
    Numbers floats(view().count);
    kernels::cast(view(), {floats.data(), floats.size()}, Into::assign);
    return floats;
  }
};

struct Kept {
  Numbers numbers, momentum;
  friend bool operator==(const Kept&, const Kept&) = default;
};

/// What feedback keeps of the tensor "x".
Kept kept(const Communicator& rank) {
  Residuals residuals;
  residuals.load(rank.save_residuals());
  const auto residual = residuals.borrow("x", kCount);
  const auto copy = [](const KeptNumbers& from) { return Numbers(from.begin(), from.end()); };
  return {copy(residual->numbers), copy(residual->momentum)};
}

/// The results of all ranks.
std::vector<Numbers> exchange(RanksHere& ranks, std::vector<Values> x, const Way& way,
                              const OperationOptions& options = {}) {
  std::vector<Numbers> results(ranks.size());
  on_all_ranks(ranks, [&](Communicator& me) {
    const Tensor tensor{"x", x[me.rank()].view(), way};
    me.all_reduce({&tensor, 1}, options).wait();
    results[me.rank()] = x[me.rank()].numbers();
  });
  return results;
}

struct Gradients {
  std::mt19937 random{1};
  Values next(Dtype dtype) {
    std::normal_distribution<float> normal;
    Numbers x(kCount);
    for (float& value : x) value = normal(random) + 0.5f;
    return {x, dtype};
  }
  /// One for each rank; `missing` grows by them.
  std::vector<Values> for_ranks(std::uint32_t ranks, Dtype dtype, std::vector<double>& missing) {
    std::vector<Values> all;
    while (all.size() < ranks) {
      all.push_back(next(dtype));
      const Numbers input = all.back().numbers();
      for (std::size_t i = 0; i < kCount; ++i) missing[i] += input[i];
    }
    return all;
  }
};

struct Hosts {
  std::uint32_t count, per_host;
  std::uint32_t ranks() const { return count * per_host; }
};

void expect_conserved(const char* codec, const Hosts& hosts, Dtype dtype, bool average,
                      const std::vector<std::string>& algorithms) {
  constexpr std::uint64_t kSteps = 40;
  const double unit = average ? hosts.ranks() : 1;
  auto ranks =
      Communicator::in_process(hosts.ranks(), {.tuning = {.piece_elements = 512}}, hosts.per_host);
  std::vector<double> missing(kCount);
  Gradients gradients;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::vector<Values> x = gradients.for_ranks(hosts.ranks(), dtype, missing);
    Way way = by(algorithms[step % algorithms.size()], codec);
    way.feedback = Feedback{};
    const auto results = exchange(ranks, std::move(x), way, {.step = step, .average = average});
    for (const Numbers& result : results) ASSERT_TRUE(same_bits(result, results[0]));
    for (std::size_t i = 0; i < kCount; ++i) missing[i] -= results[0][i] * unit;
  }
  float largest = 0;
  for (const auto& rank : ranks) {
    const Numbers rest = kept(*rank).numbers;
    for (std::size_t i = 0; i < kCount; ++i) {
      missing[i] -= rest[i];
      largest = std::max(largest, std::fabs(rest[i]));
    }
  }
  const Codec parsed = Codec::parse(codec);
  // Where inputs travel exactly, what is lost is what sums lose.
  const bool sums_only = algorithms.size() == 1 && algorithms[0] == "hierarchical-exact";
  const bool exact =
      (sums_only ? parsed.for_sums() : parsed).traits().lossless && dtype == Dtype::f32;
  EXPECT_EQ(largest > 0, !exact);
  // A few roundings to fp32 per step, of numbers up to 100.
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(missing[i], 0, 1e-3) << i;
}

class Conserved : public testing::TestWithParam<const char*> {};

TEST_P(Conserved, results_and_residuals_are_the_sum_of_all_inputs) {
  for (const Hosts& hosts : {Hosts{1, 3}, Hosts{3, 2}}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      for (const bool average : {false, true}) {
        std::vector<std::vector<std::string>> orders;
        for (const auto& each : usable_algorithms(hosts.ranks(), hosts.per_host)) {
          orders.push_back({each});
        }
        // One after the other, so that other ranks add up what a residual belongs to.
        orders.push_back(usable_algorithms(hosts.ranks(), hosts.per_host));
        for (const auto& order : orders) {
          SCOPED_TRACE(std::to_string(hosts.count) + " hosts of " + std::to_string(hosts.per_host) +
                       ", " + name_of(dtype) + ", " + order[0] + (order.size() > 1 ? ", …" : "") +
                       (average ? ", average" : ""));
          expect_conserved(GetParam(), hosts, dtype, average, order);
        }
      }
    }
  }
}

std::string name_of_codec(const testing::TestParamInfo<const char*>& one) {
  std::string name = one.param;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

/// Each rank has the sum of its part; what is kept is of the whole.
TEST_P(Conserved, in_reduce_scatter_as_well) {
  constexpr std::size_t kWhole = 1302;
  for (const std::uint32_t count : {1u, 3u}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16}) {
      for (const char* algorithm : {"sra", "ring"}) {
        SCOPED_TRACE(std::to_string(count) + " ranks, " + name_of(dtype) + ", " + algorithm);
        auto ranks = Communicator::in_process(count, {.tuning = {.piece_elements = 512}});
        std::vector<double> missing(kWhole);
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        const auto exchange = [&](const Way& way, std::uint64_t step, bool of_zeros) {
          std::vector<Values> x;
          for (std::uint32_t rank = 0; rank < count; ++rank) {
            Numbers numbers(kWhole);
            for (float& number : numbers) number = of_zeros ? 0 : normal(random);
            x.emplace_back(numbers, dtype);
            const Numbers input = x.back().numbers();
            for (std::size_t i = 0; i < kWhole; ++i) missing[i] += input[i];
          }
          on_all_ranks(ranks, [&](Communicator& me) {
            const Tensor tensor{"x", x[me.rank()].view(), way};
            me.reduce_scatter(tensor, {.step = step, .average = true}).wait();
          });
          for (std::size_t i = 0; i < kWhole; ++i) {
            const std::size_t owner = i * count / kWhole;
            missing[i] -= x[owner].numbers()[i] * static_cast<double>(count);
          }
        };
        for (std::uint64_t step = 0; step < 12; ++step) {
          exchange(by(algorithm, std::string(GetParam()) + "+feedback"), step, false);
        }
        const bool kept =
            std::ranges::any_of(missing, [](double each) { return std::fabs(each) > 1e-3; });
        const bool exact = Codec::parse(GetParam()).traits().lossless && dtype == Dtype::f32;
        EXPECT_EQ(kept, count > 1 && !exact);
        exchange(by(algorithm), 12, true);                          // delivers the rest
        const double tolerance = dtype == Dtype::f32 ? 1e-3 : 0.1;  // what the last rounding takes
        for (std::size_t i = 0; i < kWhole; ++i) ASSERT_NEAR(missing[i], 0, tolerance) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Conserved,
                         testing::Values("none", "fp16", "uniform:bits=2,rounding=nearest", "sign",
                                         "grid:step=2,rounding=nearest", "topk:density=0.05",
                                         "topk:density=0.05,values=int8",
                                         "topk:density=0.2,values=mean", "randomk:density=0.05"),
                         name_of_codec);

/// With every third step the tensor takes another way: exact, lossy and sparse, with feedback or
/// exactly without.
TEST(Conserved, when_the_way_changes_all_the_time) {
  constexpr std::uint64_t kSteps = 60;
  const char* const ways[] = {"none",
                              "sign+feedback",
                              "topk:density=0.05+feedback",
                              "none",
                              "uniform:bits=2,rounding=nearest+feedback:reuse=3",
                              "topk:density=0.02,values=int8+feedback+route:sra",
                              "none+feedback",
                              "randomk:density=0.05+feedback",
                              "none+route:ring"};
  for (const Hosts& hosts : {Hosts{1, 1}, Hosts{1, 4}, Hosts{2, 2}}) {
    auto ranks = Communicator::in_process(hosts.ranks(), {.tuning = {.piece_elements = 512}},
                                          hosts.per_host);
    std::vector<double> missing(kCount);
    Gradients gradients;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<Values> x = gradients.for_ranks(hosts.ranks(), Dtype::f32, missing);
      const Way way = Way::parse(ways[step / 3 % std::size(ways)]);
      const auto results = exchange(ranks, std::move(x), way, {.step = step});
      for (const Numbers& result : results) ASSERT_TRUE(same_bits(result, results[0]));
      for (std::size_t i = 0; i < kCount; ++i) missing[i] -= results[0][i];
      if (way.feedback) continue;
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(missing[i], 0, 1e-3) << step;
      for (const auto& rank : ranks) ASSERT_EQ(kept(*rank).numbers, Numbers(kCount)) << step;
    }
  }
}

TEST(Conserved, a_way_without_feedback_leaves_a_tensor_of_another_size_alone) {
  auto ranks = Communicator::in_process(1);
  Numbers x(10, 1.0f), y(7, 1.0f);
  const Way sparse = Way::parse("topk:density=0.1+feedback:momentum=0.5");
  const Tensor kept{"x", {x.data(), 10}, sparse}, other{"x", {y.data(), 7}};
  ranks[0]->all_reduce({&kept, 1}).wait();
  const auto saved = ranks[0]->save_residuals();
  ranks[0]->all_reduce({&other, 1}).wait();
  EXPECT_EQ(y, Numbers(7, 1.0f));
  const Tensor nameless{"", {y.data(), 7}};
  ranks[0]->all_reduce({&nameless, 1}).wait();
  EXPECT_EQ(ranks[0]->save_residuals().size(), saved.size());
}

TEST(Conserved, what_is_kept_is_not_lent_twice_and_survives_a_failure) {
  RanksHere ranks = Communicator::in_process(2);
  Numbers x(1000, 1.0f), y(1000, 1.0f), z(1000);
  const Tensor kept{"x", {x.data(), x.size()}, Way::parse("topk:density=0.1+feedback")};
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers own(1000, 1.0f);
    const Tensor tensor{"x", {own.data(), own.size()}, kept.way};
    me.all_reduce({&tensor, 1}).wait();
  });
  const auto before = ranks[0]->save_residuals();
  const Tensor exact{"x", {y.data(), y.size()}}, again{"x", {z.data(), z.size()}};
  Work under_way = ranks[0]->all_reduce({&exact, 1});  // rank 1 never comes
  EXPECT_THROW(ranks[0]->all_reduce({&again, 1}), Error);
  EXPECT_THROW(ranks[0]->all_reduce({&kept, 1}), Error);
  ranks[1].reset();
  EXPECT_THROW(under_way.wait(), Error);
  EXPECT_EQ(ranks[0]->save_residuals().size(), before.size());
}

/// Momentum makes numbers that half precision does not hold.
TEST(Conserved, one_rank_alone_keeps_what_rounding_takes) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    auto ranks = Communicator::in_process(1);
    std::vector<double> missing(kCount), speed(kCount);
    Gradients gradients;
    for (int step = 0; step < 100; ++step) {
      Values x = gradients.next(dtype);
      const Numbers input = x.numbers();
      const Numbers result = exchange(ranks, {x}, Way::parse("none+feedback:momentum=0.9"))[0];
      for (std::size_t i = 0; i < kCount; ++i) {
        speed[i] = 0.9f * speed[i] + input[i];
        missing[i] += speed[i] - result[i];
      }
    }
    const Numbers rest = kept(*ranks[0]).numbers;
    EXPECT_EQ(rest == Numbers(kCount), dtype == Dtype::f32);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(missing[i], rest[i], 1e-3) << i;
  }
}

// ---------------------------------------------------------------------------------------------

class NotFinite : public testing::TestWithParam<const char*> {};

/// On one rank: as when a loss scaler has scaled too far up there.
TEST_P(NotFinite, arrives_everywhere_and_leaves_the_ranks_residual_and_momentum_as_they_were) {
  for (const Hosts& hosts : {Hosts{1, 1}, Hosts{1, 3}, Hosts{3, 2}}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      for (const std::string& algorithm : usable_algorithms(hosts.ranks(), hosts.per_host)) {
        SCOPED_TRACE(algorithm + ", " + name_of(dtype));
        auto ranks = Communicator::in_process(hosts.ranks(), {.tuning = {.piece_elements = 512}},
                                              hosts.per_host);
        Way how = by(algorithm, GetParam());
        how.feedback = Feedback{.momentum = 0.5f};
        Gradients gradients;
        const auto inputs = [&] {
          std::vector<Values> x;
          while (x.size() < ranks.size()) x.push_back(gradients.next(dtype));
          return x;
        };
        exchange(ranks, inputs(), how);
        const Kept before = kept(*ranks[0]);
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          std::vector<Values> x = inputs();
          Numbers broken = x[0].numbers();
          broken[700] = bad;
          x[0] = {broken, dtype};
          for (const Numbers& result : exchange(ranks, std::move(x), how)) {
            EXPECT_FALSE(std::isfinite(result[700])) << bad;
          }
          EXPECT_EQ(kept(*ranks[0]), before) << bad;
        }
        // The next step delivers what was held back before.
        std::vector<double> expected(kCount);
        for (const auto& rank : ranks) {
          const Numbers rest = kept(*rank).numbers;
          for (std::size_t i = 0; i < kCount; ++i) expected[i] += rest[i];
        }
        const std::vector<Values> zeros(ranks.size(), Values(Numbers(kCount), dtype));
        const auto results = exchange(ranks, zeros, by(algorithm, "none+feedback"));
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_NEAR(results[0][i], expected[i], 0.01 * (1 + std::fabs(expected[i]))) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, NotFinite,
                         testing::Values("none", "fp16", "uniform", "sign", "exponential", "grid",
                                         "topk:density=0.05", "topk:density=0.05,values=int8",
                                         "topk:density=0.2,values=mean", "randomk:density=0.05"),
                         name_of_codec);

}  // namespace
}  // namespace gradwire
