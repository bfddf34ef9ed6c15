// Operations that repeat draw new random numbers, and codecs that send one side at a time take
// turns by tensor, whatever steps the caller gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

constexpr std::size_t kCount = 600;
constexpr std::uint32_t kRanks = 3;

struct Operation {
  const char* name;
  Work (*start)(Communicator& me, const Tensor& tensor);
  float scale;        // of the result
  std::size_t parts;  // of which this rank's is the result; 1: all of the tensor is
  bool decodes_all;   // no number of the result is one that was not encoded
};

constexpr Operation kOperations[] = {
    {"sra",
     [](Communicator& me, const Tensor& x) {
       Tensor routed = x;
       routed.way->route = "sra";
       return me.all_reduce({&routed, 1});
     },
     kRanks, 1, false},
    {"allgather",
     [](Communicator& me, const Tensor& x) {
       Tensor routed = x;
       routed.way->route = "allgather";
       return me.all_reduce({&routed, 1});
     },
     kRanks, 1, true},
    {"reduce_scatter", [](Communicator& me, const Tensor& x) { return me.reduce_scatter(x); },
     kRanks, kRanks, false},
    {"all_gather", [](Communicator& me, const Tensor& x) { return me.all_gather(x); }, 1, 1, true},
    {"broadcast",
     [](Communicator& me, const Tensor& x) {
       return me.broadcast({&x, 1}, 1);
     },
     1, 1, true}};

Numbers uneven() {
  Numbers x(kCount);
  for (std::size_t i = 0; i < kCount; ++i) x[i] = std::sin(static_cast<float>(i));
  return x;
}

TEST(RepeatedOperations, without_name_and_step_average_out) {
  constexpr int kTimes = 400;
  const Numbers exact = uneven();
  for (const Operation& operation : kOperations) {
    auto ranks = Communicator::in_process(kRanks);
    std::vector<std::vector<double>> mean(kRanks, std::vector<double>(kCount));
    on_all_ranks(ranks, [&](Communicator& me) {
      for (int time = 0; time < kTimes; ++time) {
        Numbers x = exact;
        operation.start(me, {.view = {x.data(), kCount}, .way = Way::parse("uniform:bits=2")})
            .wait();
        for (std::size_t i = 0; i < kCount; ++i) mean[me.rank()][i] += x[i] / kTimes;
      }
    });
    const std::size_t part = kCount / operation.parts;
    double worst = 0;
    for (std::size_t i = kCount - part; i < kCount; ++i) {  // the last rank's
      worst = std::max(worst, std::fabs(mean[kRanks - 1][i] - operation.scale * exact[i]));
    }
    // Levels are 2/3 apart, and of a sum of three up to 2; the first encoding adds less. So the
    // mean of 400 deviates by 0.07 at most; this is six times as much. One draw is off by up to 2.
    EXPECT_LT(worst, 0.14 * operation.scale) << operation.name;
  }
}

TEST(RepeatedOperations, tell_tensors_without_names_apart_by_their_place) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    std::vector<Numbers> x(4, uneven());
    std::vector<Tensor> tensors;
    for (Numbers& each : x) {
      tensors.push_back({.view = {each.data(), kCount}, .way = Way::parse("uniform:bits=2")});
    }
    const auto expect_all_differ = [&](std::size_t count) {
      for (std::size_t i = 0; i < 4; ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          const std::size_t first = me.rank() == 0 ? 0 : kCount - count;
          EXPECT_FALSE(
              std::equal(x[i].begin() + first, x[i].begin() + first + count, x[j].begin() + first))
              << i << " and " << j;
        }
        std::ranges::copy(uneven(), x[i].begin());  // where the tensors know it
      }
    };
    me.all_reduce(tensors, {.step = 5}).wait();
    expect_all_differ(kCount);
    me.broadcast(tensors, 0, {.step = 5}).wait();
    expect_all_differ(kCount);
    std::vector<Tensor> parts;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (Tensor part : tensors) {
        part.view = part.view.slice(rank * kCount / 2, kCount / 2);
        parts.push_back(part);
      }
    }
    me.all_gather(parts, {.step = 5}).wait();
    expect_all_differ(kCount);
  });
}

// ---------------------------------------------------------------------------------------------

Numbers all_reduced(RanksHere& ranks, const Tensor& how, const OperationOptions& options) {
  std::vector<Numbers> x(ranks.size(), uneven());
  on_all_ranks(ranks, [&](Communicator& me) {
    Tensor tensor = how;
    tensor.view = {x[me.rank()].data(), kCount};
    me.all_reduce({&tensor, 1}, options).wait();
  });
  return x[0];
}

TEST(RepeatedOperations, with_the_same_step_draw_the_same) {
  auto ranks = Communicator::in_process(2);
  const Tensor how{.way = Way::parse("uniform:bits=2")};
  const Numbers first = all_reduced(ranks, how, {.step = 7});
  EXPECT_EQ(all_reduced(ranks, how, {.step = 7}), first);
  EXPECT_NE(all_reduced(ranks, how, {.step = 8}), first);
  EXPECT_NE(all_reduced(ranks, how, {}), all_reduced(ranks, how, {}));
}

TEST(RepeatedOperations, go_on_where_saved_ones_stopped) {
  auto ranks = Communicator::in_process(2);
  const Tensor rounded{.way = Way::parse("uniform:bits=2")};
  const Tensor sided{.name = "x", .way = Way::parse("topk:density=0.1,values=mean+feedback")};
  for (int step = 0; step < 3; ++step) {
    all_reduced(ranks, rounded, {});
    all_reduced(ranks, sided, {});
  }
  auto resumed = Communicator::in_process(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    resumed[rank]->load_residuals(ranks[rank]->save_residuals());
  }
  EXPECT_EQ(all_reduced(resumed, rounded, {}), all_reduced(ranks, rounded, {}));
  EXPECT_EQ(all_reduced(resumed, sided, {}), all_reduced(ranks, sided, {}));
}

// ---------------------------------------------------------------------------------------------

/// Whether the positive numbers were sent, and not the negative ones.
bool positive_side(const Numbers& result) {
  const auto [low, high] = std::minmax_element(result.begin(), result.end());
  EXPECT_NE(*low<0, *high> 0) << "one side is sent";
  return *high > 0;
}

void expect_to_alternate(const std::vector<bool>& sides) {
  for (std::size_t i = 1; i < sides.size(); ++i) EXPECT_NE(sides[i], sides[i - 1]) << i;
}

Way one_side(bool feedback = false) {
  return Way::parse(feedback ? "topk:density=0.1,values=mean+feedback+route:allgather"
                             : "topk:density=0.1,values=mean+route:allgather");
}

TEST(Turns, are_taken_by_every_tensor_whatever_the_steps_are) {
  for (const bool feedback : {false, true}) {
    for (const std::uint64_t stride : {0, 1, 2}) {
      SCOPED_TRACE("steps by " + std::to_string(stride) + (feedback ? ", feedback" : ""));
      auto ranks = Communicator::in_process(2);
      std::map<std::string, std::vector<bool>> sides;
      std::uint64_t step = 0;
      for (int time = 0; time < 4; ++time) {
        for (const char* name : {"a", "b"}) {  // so that each has steps of one parity
          const Tensor how{.name = name, .way = one_side(feedback)};
          sides[name].push_back(positive_side(all_reduced(ranks, how, {.step = stride * step++})));
        }
      }
      for (const auto& [name, taken] : sides) expect_to_alternate(taken);
    }
  }
}

/// An exact operation in between sends both sides, and takes no turn.
TEST(Turns, are_not_taken_by_codecs_that_send_both_sides) {
  auto ranks = Communicator::in_process(2);
  for (const bool feedback : {false, true}) {
    std::vector<bool> sides;
    for (int time = 0; time < 4; ++time) {
      const Tensor how{.name = "x", .way = one_side(feedback)};
      sides.push_back(positive_side(all_reduced(ranks, how, {})));
      all_reduced(ranks, {.name = "x", .way = Way::parse(feedback ? "none+feedback" : "none")}, {});
    }
    expect_to_alternate(sides);
  }
}

/// A program whose names never repeat does not fill the memory.
TEST(Turns, begin_anew_when_there_are_too_many_names) {
  auto ranks = Communicator::in_process(2);
  const Tensor how{.name = "x", .way = one_side()};
  EXPECT_TRUE(positive_side(all_reduced(ranks, how, {})));
  on_all_ranks(ranks, [](Communicator& me) {
    Numbers numbers(65536, 1.0F);
    std::vector<Tensor> tensors;
    for (float& number : numbers) {
      tensors.push_back({std::to_string(tensors.size()), {&number, 1}, one_side()});
    }
    me.all_reduce(tensors, {.timeout = kMaxTimeout}).wait();  // it takes seconds of a busy core
  });
  EXPECT_TRUE(positive_side(all_reduced(ranks, how, {})));
  EXPECT_FALSE(positive_side(all_reduced(ranks, how, {})));
}

/// By the same name, and one after the other: each has turns of its own.
TEST(Turns, are_taken_by_every_collective) {
  auto ranks = Communicator::in_process(2);
  std::map<std::string, std::vector<bool>> sides;
  for (int time = 0; time < 4; ++time) {
    for (const Operation& operation : kOperations) {
      if (!operation.decodes_all) continue;
      std::vector<Numbers> x(2, uneven());
      on_all_ranks(ranks, [&](Communicator& me) {
        Numbers& own = x[me.rank()];
        Tensor tensor{.name = "x", .view = {own.data(), kCount}, .way = one_side()};
        tensor.way->route.clear();
        operation.start(me, tensor).wait();
      });
      sides[operation.name].push_back(positive_side(x[0]));
    }
  }
  for (const auto& [name, taken] : sides) expect_to_alternate(taken);
}

}  // namespace
}  // namespace gradwire
