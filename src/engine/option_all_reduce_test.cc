// Every option of the decision tree, executed: exact sums or bounded errors, equal bits on all
// ranks, and of what codecs hold back nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "collective/option.h"
#include "engine/engine_test_ranks.h"
#include "feedback/residuals.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

struct Hosts {
  std::uint32_t count, per_host;
  std::uint32_t ranks() const { return count * per_host; }
};

std::vector<std::string> options() {
  std::vector<std::string> texts;
  for (const Option& option : all_options()) texts.push_back(option.text());
  return texts;
}

/// The error's share of the sum's energy.
double loss(const Numbers& result, std::uint32_t ranks) {
  std::vector<double> sum(result.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Numbers x = gaussian(result.size(), rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
  }
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    error += (result[i] - sum[i]) * (result[i] - sum[i]);
    energy += sum[i] * sum[i];
  }
  return error / energy;
}

/// Whether a codec encodes anything that leaves a rank.
bool is_lossy(const Option& option, const Hosts& hosts) {
  const auto is_made = [&](const Hop& hop) {
    return (hop.level == Level::inside ? hosts.per_host : hosts.count) > 1 ||
           (hop.level == Level::all && hosts.ranks() > 1);
  };
  for (const Leg& leg : option.legs()) {
    if (!leg.exact && std::ranges::any_of(leg.hops, is_made)) return true;
  }
  return false;
}

class OptionAllReduce : public testing::TestWithParam<Hosts> {
 protected:
  /// The results of all ranks, of what `input(rank)` gives.
  template <class Input>
  std::vector<Numbers> exchange(const std::string& option, const char* way, Input input) {
    std::vector<Numbers> results(ranks_.size());
    on_all_ranks(ranks_, [&](Communicator& me) {
      Numbers& x = results[me.rank()] = input(me.rank());
      const Tensor tensor{"x", {x.data(), x.size()}, by(option, way)};
      me.all_reduce({&tensor, 1}, {.seed = 3}).wait();
    });
    return results;
  }
  std::uint32_t size() const { return GetParam().ranks(); }

  RanksHere ranks_ = Communicator::in_process(GetParam().ranks(), {}, GetParam().per_host);
};

TEST_P(OptionAllReduce, gives_the_sum_and_the_same_bits_to_all) {
  const std::size_t n = size();
  for (const std::string& option : options()) {
    for (const std::size_t count :
         {std::size_t{1}, n - 1, n + 1, std::size_t{1009}, std::size_t{100'003}}) {
      SCOPED_TRACE(option + ", " + std::to_string(count) + " numbers");
      const auto exact =
          exchange(option, "none", [&](std::uint32_t rank) { return integers(count, rank); });
      for (const Numbers& result : exact) ASSERT_EQ(result, sum_of_all(count, size()));
      const auto lossy = exchange(option, "grid:step=0.1",
                                  [&](std::uint32_t rank) { return gaussian(count, rank); });
      for (const Numbers& result : lossy) ASSERT_TRUE(same_bits(result, lossy[0]));
      if (count < 1000) continue;  // few numbers have no typical error
      const Option parsed = Option::parse(option);
      const double lost = loss(lossy[0], size());
      ASSERT_LT(lost, 0.003 * parsed.encodings() + 1e-12);  // a step of 0.1: 0.0017 by each
      ASSERT_EQ(lost > 1e-12, is_lossy(parsed, GetParam()));
    }
  }
}

/// What results lack of all inputs is in the residuals, of whichever rank, after several steps.
TEST_P(OptionAllReduce, loses_nothing_of_what_codecs_hold_back) {
  constexpr std::size_t kCount = 1009;
  for (const char* way : {"sign+feedback", "topk:density=0.05+feedback"}) {
    for (const std::string& option : options()) {
      SCOPED_TRACE(option + ", " + way);
      std::vector<double> missing(kCount);
      for (int step = 0; step < 3; ++step) {
        std::vector<Numbers> inputs(size());
        const auto results = exchange(option, way, [&](std::uint32_t rank) {
          return inputs[rank] = gaussian(kCount, rank + 10 * step);
        });
        for (std::size_t i = 0; i < kCount; ++i) {
          for (const Numbers& input : inputs) missing[i] += input[i];
          missing[i] -= results[0][i];
        }
      }
      for (const auto& rank : ranks_) {
        Residuals residuals;
        residuals.load(rank->save_residuals());
        const auto rest = residuals.borrow("x", kCount);
        for (std::size_t i = 0; i < kCount; ++i) missing[i] -= rest->numbers[i];
      }
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(missing[i], 0, 1e-3) << i;
      for (const auto& rank : ranks_) rank->load_residuals(Residuals().save());
    }
  }
}

/// Messages that are only passed on need memory, too, and count.
TEST(OptionsOfManyRanks, fit_their_lanes_and_count_what_they_pass_on) {
  constexpr std::uint32_t kHosts = 2, kPerHost = 4;
  constexpr std::size_t kCount = 1'500'000;
  auto ranks = Communicator::in_process(kHosts * kPerHost, {}, kPerHost);
  for (const char* option :
       {"encode-inside.gather-between.gather-between.broadcast-inside.broadcast-decode",
        "encode-inside.all_to_all-between.all_to_all-between.all_gather-inside.all_gather-"
        "decode"}) {
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers x = integers(kCount, me.rank());
      const Tensor tensor{"x", {x.data(), x.size()}, by(option, "fp16")};
      Work work = me.all_reduce({&tensor, 1});
      work.wait();
      EXPECT_EQ(x, sum_of_all(kCount, kHosts * kPerHost)) << option;
      const Statistics& done = work.statistics();
      const auto overhead = static_cast<double>(done.sent_bytes - done.tensors[0].sent_bytes);
      EXPECT_LE(overhead, 0.01 * static_cast<double>(done.sent_bytes)) << option;
    });
  }
}

/// Otherwise hosts would encode the same sum to unlike bytes.
TEST(OptionsWithReplicas, refuse_ranks_that_differ_in_step_or_settings) {
  const char* const option =
      "inside.reduce_scatter-between.all_reduce-encode-inside.all_gather-decode";
  for (const bool other_step : {true, false}) {
    auto ranks = Communicator::in_process(4, {}, 2);
    on_all_ranks(ranks, [&](Communicator& me) {
      const bool odd = me.rank() == 3;
      Numbers x(1000, 1);
      const char* const codec = odd && !other_step ? "grid:step=0.1" : "grid:step=0.5";
      const Tensor tensor{"x", {x.data(), x.size()}, by(option, codec)};
      Work work = me.all_reduce({&tensor, 1}, {.step = odd && other_step ? 2u : 1u});
      EXPECT_THROW(work.wait(), Error) << me.rank();
    });
  }
}

TEST(OptionsWithExactLegs, measure_the_error_that_their_sums_make) {
  for (const char* route : {"hierarchical-exact", "reduce_scatter-encode-all_gather-decode"}) {
    auto ranks = Communicator::in_process(4, {}, 2);
    double error = 0, energy = 0;
    std::mutex mutex;
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers x = gaussian(10'000, me.rank());
      const Tensor tensor{"x", {x.data(), x.size()}, by(route, "sign")};
      Work work = me.all_reduce({&tensor, 1}, {.measure_error = true});
      work.wait();
      const std::lock_guard lock(mutex);
      error += work.statistics().tensors[0].squared_error;
      energy += work.statistics().tensors[0].measured_energy;
    });
    EXPECT_GT(error / energy, 0.2) << route;
    EXPECT_LT(error / energy, 0.6) << route;
  }
}

INSTANTIATE_TEST_SUITE_P(hosts, OptionAllReduce,
                         testing::Values(Hosts{2, 2}, Hosts{3, 2}, Hosts{4, 1}),
                         [](const auto& hosts) {
                           return std::to_string(hosts.param.count) + "_of_" +
                                  std::to_string(hosts.param.per_host);
                         });

}  // namespace
}  // namespace gradwire
