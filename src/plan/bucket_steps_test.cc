#include "plan/bucket_steps.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(BucketSteps, small_buckets_hide_exchanges_that_large_ones_do_not) {
  // Four tensors of 4 MiB, ready at 0.1, 0.2, 0.3 and 0.4 s. With 10 Gbit/s one takes 3.4 ms.
  Workload workload;
  for (int i = 1; i <= 4; ++i) workload.tensors.push_back({"", 1 << 20, 0.1 * i});
  workload.backward_seconds = 0.4;
  Costs costs;
  costs.cores = 2;
  costs.between = {1e-5, 8.0 / 10e9};
  costs.codecs["none"] = {};
  const std::size_t sizes[] = {25, 4};
  const auto steps = steps_by_bucket(workload, {2, 1}, costs, {}, sizes);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].mebibytes, 25u);
  // The first bucket has 1 MiB, so one tensor; the others are together, or each alone.
  const double one = 4194304 * 8 / 10e9;
  EXPECT_NEAR(steps[0].step_seconds, 0.4 + 3 * one, 1e-3);
  EXPECT_NEAR(steps[1].step_seconds, 0.4 + one, 1e-3);
  EXPECT_EQ(best_of(steps).mebibytes, 4u);
}

TEST(BucketSteps, of_equal_ones_the_first_is_best) {
  const BucketStep steps[] = {{25, 1.0005}, {5, 1.0}, {1, 1.1}};
  EXPECT_EQ(best_of(steps).mebibytes, 25u);
}

}  // namespace
}  // namespace gradwire
