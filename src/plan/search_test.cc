#include "plan/search.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

const Codec kSign = Codec::parse("sign");

CostTable always(double seconds) { return CostTable({{std::size_t{1} << 20, seconds}}); }

/// Between two hosts of one rank an exact element takes a second, a compressed one a tenth. The
/// device that computes encodes, or decodes both messages, in a second; the other one in three.
Costs hand_costs(bool two_devices) {
  Costs costs;
  costs.isa = "gpu";
  costs.between = {0, 0.25};
  costs.codecs["none"] = {};
  costs.codecs[kSign.spec()] = {.encode = always(1),
                                .decode = always(1),
                                .preparation = {},
                                .bytes_per_element = 0.4,
                                .other_encode = two_devices ? always(3) : CostTable(),
                                .other_decode = two_devices ? always(1.5) : CostTable()};
  return costs;
}

struct Job {
  Job(Workload asked, bool two_devices)
      : workload(std::move(asked)),
        costs(hand_costs(two_devices)),
        limits{.codecs = {kSign},
               .options = {Option::parse("all_reduce"), Option::parse("encode-all_gather-decode")}},
        candidates(Cluster{2, 1}, costs, limits),
        search(workload, candidates, {.one_device = true}) {}

  /// By tensor: exact, compressed, or so on the second device.
  std::string choices() const {
    std::string text;
    for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
      const Candidate& choice = search.choice(i);
      text += choice.exact() ? 'e' : choice.elsewhere == 0 ? 'c' : 'o';
    }
    return text;
  }

  Workload workload;
  Costs costs;
  WayLimits limits;
  Candidates candidates;
  Search search;
};

Workload hand_workload(std::vector<WorkloadTensor> tensors, double backward) {
  Workload workload;
  workload.tensors = std::move(tensors);
  workload.backward_seconds = backward;
  return workload;
}

TEST(Search, algorithm_1_compresses_what_is_behind_the_bubble) {
  // Exact: A is sent 2-12, B 20-30, C 30-50. Nothing is under way between 12 and 20.
  Job job(hand_workload({{"A", 10, 2}, {"B", 10, 20}, {"C", 20, 22}}, 22), false);
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 50);
  EXPECT_TRUE(job.search.forecast().before_bubble(0));
  EXPECT_FALSE(job.search.forecast().before_bubble(1));
  // The largest first. C is encoded 22-23, sent 30-32 behind B, decoded 32-33. Then B, the last of
  // its size: encoded 20-21, sent 21-22, decoded 22-23. Meanwhile C is computed 21-22 and 23-24,
  // then encoded until 25, sent until 27, decoded until 28. A is before the bubble.
  job.search.decide_one_by_one();
  EXPECT_EQ(job.choices(), "ecc");
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 28);
}

TEST(Search, algorithm_1_leaves_exact_what_codecs_make_longer) {
  // Two elements take two seconds to send and more than that to encode and decode.
  Job job(hand_workload({{"A", 2, 2}, {"B", 2, 20}}, 20), false);
  job.search.decide_one_by_one();
  EXPECT_EQ(job.choices(), "ee");
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 22);
}

TEST(Search, algorithm_2_moves_the_tensors_that_are_ready_first) {
  // 8 s of backward follow B. Exact: A is sent 2-22, B 22-42.
  Job job(hand_workload({{"A", 20, 2}, {"B", 20, 4}}, 12), true);
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 42);
  // Algorithm 1: A is encoded 2-3, so B is computed 3-5 and backward ends at 13. A is sent 3-5 and
  // decoded 6-7, behind B's encoding; B is sent 6-8 and decoded 8-9.
  job.search.decide_one_by_one();
  EXPECT_EQ(job.choices(), "cc");
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 13);
  // Algorithm 2, A alone: it is encoded elsewhere 2-5, so backward ends at 12. B is encoded 4-5 and
  // sent 5-7, A sent 7-9 and decoded elsewhere 9-12. Both: encoded 2-5 and 5-8, sent 5-7 and 8-10,
  // decoded 8-11 and 11-14. B alone: A's encoding delays backward to 13, B is encoded 5-8, sent
  // 8-10, decoded 10-13. So A alone.
  job.search.offload();
  EXPECT_EQ(job.choices(), "oc");
  EXPECT_DOUBLE_EQ(job.search.forecast().step_seconds(), 12);
}

TEST(Search, algorithm_2_moves_nothing_without_a_second_device) {
  Job job(hand_workload({{"A", 20, 2}, {"B", 20, 4}}, 12), false);
  job.search.decide_one_by_one();
  job.search.offload();
  EXPECT_EQ(job.choices(), "cc");
}

TEST(Search, is_no_worse_than_the_papers_algorithms) {
  Job job(hand_workload({{"A", 20, 2}, {"B", 20, 4}}, 12), true);
  job.search.run();
  EXPECT_LE(job.search.forecast().step_seconds(), 12);
}

TEST(Search, knows_the_best_way_for_all) {
  // All compressed on the first device: 13, as above. All exact: 42.
  Job job(hand_workload({{"A", 20, 2}, {"B", 20, 4}}, 12), true);
  EXPECT_DOUBLE_EQ(job.search.take_uniform(true, 1000).value_or(0), 42);
  EXPECT_DOUBLE_EQ(job.search.take_uniform(false, 1000).value_or(0), 13);
  EXPECT_EQ(job.choices(), "cc");
  EXPECT_FALSE(job.search.take_uniform(false, 13));
}

}  // namespace
}  // namespace gradwire
