#include "plan/cost_presets.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire {
namespace {

TEST(CostPresets, are_files_that_hold_everywhere_and_say_where_they_are_from) {
  EXPECT_EQ(cost_preset_names(), (std::vector<std::string>{"testbed-a", "testbed-b", "cpu"}));
  for (const std::string& name : cost_preset_names()) {
    const Costs costs = preset_costs(name);
    EXPECT_EQ(parse_costs(text_of(costs)), costs) << name;
    EXPECT_TRUE(costs.source.starts_with("preset " + name + ": ")) << costs.source;
    EXPECT_EQ(costs.host, "") << name;
    EXPECT_GT(costs.inside.seconds_per_byte, 0) << name;
    EXPECT_GT(costs.between.seconds_per_byte, 0) << name;
  }
}

TEST(CostPresets, know_the_compressors_of_the_paper_and_their_sums) {
  for (const std::string& name : cost_preset_names()) {
    const Costs costs = preset_costs(name);
    for (const char* spec : {"none", "randomk:density=0.01", "topk:density=0.01", "sign"}) {
      const Codec codec = Codec::parse(spec);
      EXPECT_LE(costs.codec(codec).bytes_per_element, 4.1) << name << " " << spec;
      EXPECT_NO_THROW(costs.codec(codec.for_sums())) << name << " " << spec;
    }
  }
}

TEST(CostPresets, testbeds_have_the_papers_links_and_times) {
  const Costs a = preset_costs("testbed-a");
  EXPECT_DOUBLE_EQ(a.between.seconds_per_byte, 8 / 100e9);
  EXPECT_DOUBLE_EQ(preset_costs("testbed-b").between.seconds_per_byte, 8 / 25e9);
  const MeasuredCodec& dgc = a.codec(Codec::parse("topk:density=0.01"));
  EXPECT_DOUBLE_EQ(dgc.encode.at(1000) + dgc.decode.at(1000), 390e-6);
  EXPECT_DOUBLE_EQ(dgc.encode.at(3U << 20U) + dgc.decode.at(8 * (3U << 20U)), 3 * 390e-6);
  // A hop of a hierarchical all_reduce among eight.
  EXPECT_DOUBLE_EQ(4 * 7 * a.inside.seconds, 2 * 150e-6);
  // 20 Gbit/s of a host's gradients, of which each of 8 ranks has a share.
  EXPECT_DOUBLE_EQ(dgc.other_encode.at(1 << 20) + 8 * dgc.other_decode.at(1 << 20),
                   8 * (1 << 20) * 32 / 20e9);
}

TEST(CostPresets, others_are_refused_with_the_names) {
  try {
    preset_costs("testbed-c");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "there is no preset 'testbed-c'; there are testbed-a, testbed-b, cpu");
  }
}

}  // namespace
}  // namespace gradwire
