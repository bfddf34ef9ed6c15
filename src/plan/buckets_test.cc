#include "plan/buckets.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 18;  // elements

std::vector<double> ready_of(const Workload& workload) {
  std::vector<double> ready;
  for (const WorkloadTensor& tensor : workload.tensors) ready.push_back(tensor.ready_seconds);
  return ready;
}

TEST(Buckets, wait_for_their_last_tensor) {
  Workload workload;
  workload.tensors = {{"a", kMiB / 2, 1}, {"b", kMiB / 2, 2}, {"c", 20 * kMiB, 3},
                      {"d", 4 * kMiB, 4}, {"e", kMiB, 5},     {"f", 1, 6},
                      {"g", 1, 7}};
  workload.backward_seconds = 8;
  EXPECT_EQ(ready_of(in_buckets(workload)), (std::vector<double>{2, 2, 5, 5, 5, 7, 7}));
  EXPECT_EQ(ready_of(in_buckets(workload, {1, 1})), ready_of(workload));
  EXPECT_EQ(ready_of(in_buckets(workload, {.others = 1000 * kMiB})),
            (std::vector<double>{2, 2, 7, 7, 7, 7, 7}));
  EXPECT_EQ(in_buckets(workload).backward_seconds, 8);
}

TEST(Buckets, of_nothing_are_none) { EXPECT_TRUE(in_buckets({}).tensors.empty()); }

}  // namespace
}  // namespace gradwire
