#include "machine/measure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace gradwire::cli {
namespace {

Timings timings_of(std::initializer_list<double> seconds) {
  Timings timings;
  for (const double s : seconds) timings.add(s);
  return timings;
}

TEST(Timings, a_quarter_of_the_samples_is_below_the_lower_quartile) {
  EXPECT_EQ(3, timings_of({9, 4, 8, 2, 3, 7, 1, 6}).lower_quartile());
  EXPECT_EQ(1, timings_of({9, 1, 2}).lower_quartile());
  EXPECT_EQ(5, timings_of({5}).lower_quartile());
}

TEST(Timings, median_of_odd_and_even_numbers_of_samples) {
  EXPECT_EQ(2, timings_of({9, 1, 2}).median());
  EXPECT_EQ(3, timings_of({4, 9, 1, 2}).median());
  EXPECT_EQ(5, timings_of({5}).median());
}

TEST(Timings, spread_is_from_fastest_to_slowest) {
  const Timings timings = timings_of({3, 1, 2});
  EXPECT_EQ(1, timings.fastest());
  EXPECT_EQ(3, timings.slowest());
}

TEST(Measure, short_work_is_repeated_until_a_sample_is_long_enough) {
  std::size_t runs = 0;
  volatile std::size_t sink = 0;
  const std::size_t calls = calls_per_sample([&] { sink = ++runs; });
  EXPECT_GT(calls, 1000U);
  EXPECT_GE(runs, calls);
}

TEST(CpuShare, time_without_a_cpu_lowers_it) {
  const CpuShare whole;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // stands for being preempted
  EXPECT_LT(whole.share(), 0.9);
}

TEST(CpuShare, note_is_for_low_shares_only) {
  EXPECT_EQ("", disturbance_note(1));
  EXPECT_NE(std::string::npos, disturbance_note(0.6).find("40 %"));
}

TEST(Measure, gigabytes_are_decimal) { EXPECT_EQ(4, gigabytes_per_second(2'000'000'000, 0.5)); }

}  // namespace
}  // namespace gradwire::cli
