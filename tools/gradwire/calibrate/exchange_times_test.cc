#include "calibrate/exchange_times.h"

#include <gtest/gtest.h>

namespace gradwire::cli {
namespace {

const MeasuredCodec kExact{.encode = CostTable({{1, 1e-6}, {1'000'000, 101e-6}}),
                           .decode = CostTable({{1, 2e-6}, {1'000'000, 202e-6}}),
                           .preparation = {},
                           .bytes_per_element = 4};

GatherTimes times_of(const LinkCost& link) {
  GatherTimes times;
  for (const std::size_t elements : {1U, 1000U, 100'000U, 1'000'000U}) {
    const double bytes = 4 * static_cast<double>(elements);
    const double codec = kExact.encode.at(elements) + kExact.decode.at(elements);
    times.push_back({elements, link.of(bytes) + codec,
                     link.cpu_seconds + bytes * link.cpu_seconds_per_byte + codec});
  }
  return times;
}

TEST(LinkCost, is_what_codecs_leave) {
  const LinkCost link = link_cost(times_of({30e-6, 8e-9, 10e-6, 1e-9}), kExact);
  EXPECT_NEAR(link.seconds, 30e-6, 1e-7);
  EXPECT_NEAR(link.seconds_per_byte, 8e-9, 1e-12);
  EXPECT_NEAR(link.cpu_seconds, 10e-6, 1e-7);
  EXPECT_NEAR(link.cpu_seconds_per_byte, 1e-9, 1e-12);
}

TEST(LinkCost, small_messages_that_pass_at_once_say_nothing_about_a_rate) {
  GatherTimes times = times_of({30e-6, 8e-9});
  times[1].seconds = times[0].seconds;
  EXPECT_NEAR(link_cost(times, kExact).seconds_per_byte, 8e-9, 1e-12);
}

TEST(LinkCost, is_never_negative) {
  GatherTimes times = times_of({});
  for (GatherTime& time : times) time.seconds /= 2, time.cpu_seconds /= 2;
  EXPECT_EQ(link_cost(times, kExact), LinkCost{});
}

TEST(LinkCost, of_a_link_too_slow_for_more_comes_from_two_sizes) {
  GatherTimes times = times_of({1e-3, 1e-3});
  times.resize(2);
  EXPECT_NEAR(link_cost(times, kExact).seconds_per_byte, 1e-3, 1e-6);
}

}  // namespace
}  // namespace gradwire::cli
