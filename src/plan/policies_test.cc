#include "plan/policies.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

const std::vector<Layer> kLayers = {
    {"bias", 100'000, 1, ""},    {"small", 1023, 2, ""},       {"least", 1024, 2, ""},
    {"complex", 9000, 2, "no"},  {"head.weight", 9000, 2, ""}, {"tail.weight", 9000, 2, ""},
    {"large", 1'000'000, 2, ""}, {"medium", 16'383, 2, ""},
};

DensePolicy dense() {
  return {.way = Way::parse("grid+feedback:momentum=0.5"),
          .exact = {"head.*"},
          .others = {{"*.weight", Way::parse("fp16+feedback:momentum=0.5")},
                     {"tail.*", Way::parse("bf16")}}};
}

TEST(DensePolicy, layers_that_are_worth_it_take_the_way) {
  const Plan plan = plan_for(kLayers, dense());
  const auto codec = [&](const char* name) {
    const std::vector<Stage>& stages = plan.stages_of(name);
    EXPECT_EQ(stages.size(), 1u);
    EXPECT_FALSE(stages[0].reason.empty()) << name;
    EXPECT_EQ(stages[0].way.feedback, dense().way.feedback) << name;
    return std::string(stages[0].way.codec.name());
  };
  for (const char* name : {"bias", "small", "complex", "head.weight"}) {
    EXPECT_EQ(codec(name), "none") << name;
  }
  for (const char* name : {"least", "large", "medium"}) EXPECT_EQ(codec(name), "grid") << name;
  EXPECT_EQ(codec("tail.weight"), "fp16") << "the first pattern holds";
  EXPECT_NO_THROW(plan.check());
}

SparsePolicy sparse(std::uint64_t warmup, bool ramp) {
  return {.dense = dense(),
          .density = 0.01F,
          .warmup = warmup,
          .ramp = ramp,
          .network = {.ranks = 4, .bytes_per_second = 12.5e6}};
}

TEST(SparsePolicy, large_layers_are_selected_from) {
  const Plan plan = plan_for(kLayers, sparse(0, false));
  EXPECT_EQ(plan.stages_of("large")[0].way.codec.name(), "topk");
  EXPECT_EQ(plan.stages_of("medium")[0].way.codec.name(), "grid");
  EXPECT_EQ(plan.stages_of("bias")[0].way.codec.name(), "none");
  for (const Layer& layer : kLayers) {
    const Way& way = plan.stages_of(layer.name)[0].way;
    EXPECT_EQ(way.feedback, dense().way.feedback) << layer.name;
  }
}

TEST(SparsePolicy, a_fast_link_is_not_worth_it) {
  SparsePolicy policy = sparse(10, false);
  policy.dense.way.codec = Codec::parse("none");
  policy.network.bytes_per_second = 1e12;
  EXPECT_EQ(plan_for(kLayers, policy).stages_of("large").size(), 1u);
  EXPECT_EQ(plan_for(kLayers, policy).stages_of("large")[0].way.codec.name(), "none");
}

std::vector<std::pair<std::uint64_t, std::string>> stages(const SparsePolicy& policy) {
  const Plan plan = plan_for(kLayers, policy);
  plan.check();
  std::vector<std::pair<std::uint64_t, std::string>> found;
  for (const Stage& stage : plan.stages_of("large")) {
    const std::string spec = stage.way.codec.spec();
    found.emplace_back(stage.from_step, spec.substr(0, spec.find(',')));
  }
  return found;
}

TEST(SparsePolicy, the_first_steps_are_dense_or_ramped) {
  using Stages = std::vector<std::pair<std::uint64_t, std::string>>;
  EXPECT_EQ(stages(sparse(300, false)), (Stages{{0, "grid:step=0.5"}, {300, "topk:density=0.01"}}));
  EXPECT_EQ(stages(sparse(300, true)), (Stages{{0, "topk:density=0.25"},
                                               {100, "topk:density=0.0625"},
                                               {200, "topk:density=0.015625"},
                                               {300, "topk:density=0.01"}}));
  EXPECT_EQ(stages(sparse(1, true)),
            (Stages{{0, "topk:density=0.0625"}, {1, "topk:density=0.01"}}));
  SparsePolicy denser = sparse(10, true);
  denser.density = 0.25F;
  denser.dense.way.codec = Codec::parse("none");
  EXPECT_EQ(stages(denser), (Stages{{0, "topk:density=0.25"}}));
}

TEST(SparsePolicy, what_is_no_codec_is_refused) {
  SparsePolicy policy = sparse(0, false);
  policy.density = 2;
  EXPECT_THROW(sparse_codec(policy), Error);
}

}  // namespace
}  // namespace gradwire
