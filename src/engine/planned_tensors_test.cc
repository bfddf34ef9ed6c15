// Layers that are registered once, and plans that say how they travel from a step on.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

constexpr std::size_t kCount = 3000;

Numbers gradient(std::uint32_t rank, std::uint64_t step) {
  std::mt19937 random(100 * static_cast<std::uint32_t>(step) + rank);
  std::normal_distribution<float> normal;
  Numbers x(kCount);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<LayerShape> layers() { return {{"body.weight", kCount}, {"head.weight", kCount}}; }

Plan plan_of(const std::string& way) {
  return {.layers = {{"*.weight", {{0, Way::parse(way), ""}}}}};
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The sums of both layers at a step, by the plan or by this way.
std::vector<Numbers> exchange(Communicator& me, std::uint64_t step, std::optional<Way> way = {}) {
  std::vector<Numbers> x{gradient(me.rank(), step), gradient(me.rank(), step + 50)};
  const std::vector<Tensor> tensors{{"body.weight", {x[0].data(), kCount}, way},
                                    {"head.weight", {x[1].data(), kCount}, way}};
  me.all_reduce(tensors, {.step = step}).wait();
  return x;
}

TEST(PlannedTensors, take_the_ways_of_their_names_from_its_step_on) {
  auto planned = Communicator::in_process(3);
  auto told = Communicator::in_process(3);
  const char* const texts[] = {"none", "uniform:bits=2", "sign+feedback", "topk:density=0.1"};
  on_all_ranks(planned, [&](Communicator& me) {
    me.register_layers(layers());
    me.set_plan(plan_of(texts[1]), 2);  // before that there is none
    me.set_plan({.layers = {{"*",
                             {{0, Way::parse(texts[1]), ""},
                              {5, Way::parse(texts[2]), ""},
                              {7, Way::parse(texts[3]), ""}}}}},
                4);
  });
  for (std::uint64_t step = 0; step < 9; ++step) {
    const char* way = step < 2 ? texts[0] : step < 5 ? texts[1] : step < 7 ? texts[2] : texts[3];
    std::vector<std::vector<Numbers>> by_plan(3), by_way(3);
    on_all_ranks(planned, [&](Communicator& me) { by_plan[me.rank()] = exchange(me, step); });
    on_all_ranks(
        told, [&](Communicator& me) { by_way[me.rank()] = exchange(me, step, Way::parse(way)); });
    EXPECT_EQ(by_plan, by_way) << "step " << step;
  }
}

TEST(PlannedTensors, may_be_parts) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    const std::vector<LayerShape> known = layers();
    me.register_layers(known);
    me.set_plan(plan_of("uniform:bits=2"));
    Numbers by_plan = gradient(me.rank(), 0), by_way = by_plan;
    me.reduce_scatter(Tensor{"body.weight", {by_plan.data(), kCount}}, {.step = 0}).wait();
    const Way way = Way::parse("uniform:bits=2");
    me.reduce_scatter(Tensor{"body.weight", {by_way.data(), kCount}, way}, {.step = 0}).wait();
    EXPECT_TRUE(same_bits(by_plan, by_way));
  });
}

TEST(PlannedTensors, without_a_plan_are_exact) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x = integers(kCount, me.rank());
    const Tensor tensor{"x", {x.data(), kCount}};
    me.all_reduce({&tensor, 1}).wait();
    EXPECT_TRUE(same_bits(x, sum_of_all(kCount, 2)));
  });
}

TEST(PlannedTensors, that_the_plan_does_not_know_are_refused) {
  auto ranks = Communicator::in_process(1);
  Communicator& me = *ranks[0];
  Numbers x(kCount);
  const auto refusal = [&](const std::string& name, std::size_t count, OperationOptions options) {
    const Tensor tensor{name, {x.data(), count}};
    return error_of([&] { me.all_reduce({&tensor, 1}, options).wait(); });
  };
  EXPECT_NE(error_of([&] { me.set_plan(plan_of("sign")); }).find("register"), std::string::npos);
  me.register_layers(layers());
  EXPECT_NE(error_of([&] {
              me.set_plan({.layers = {{"tail", {Stage{}}}}});
            }).find("tail"),
            std::string::npos);
  EXPECT_EQ(refusal("tail", kCount, {}), "");  // there is no plan yet
  me.set_plan(plan_of("sign"));
  EXPECT_NE(refusal("tail", kCount, {}).find("'tail'"), std::string::npos);
  EXPECT_NE(refusal("body.weight", 7, {}).find("3000 elements"), std::string::npos);
  EXPECT_EQ(refusal("body.weight", kCount, {}), "");  // its way is the same at every step
  me.set_plan(plan_of("none"), 8);
  EXPECT_NE(refusal("body.weight", kCount, {}).find("step"), std::string::npos);
  EXPECT_EQ(refusal("body.weight", kCount, {.step = 8}), "");
}

TEST(PlannedTensors, are_registered_once) {
  auto ranks = Communicator::in_process(1);
  ranks[0]->register_layers(layers());
  ranks[0]->register_layers(layers());
  const LayerShape other{"body.weight", 5};
  const LayerShape half{"head.weight", kCount, Dtype::f16};
  const LayerShape nameless{"", 5};
  for (const LayerShape& wrong : {other, half, nameless}) {
    EXPECT_THROW(ranks[0]->register_layers({&wrong, 1}), Error);
  }
}

/// One rank's plan, step or layers differ: all ranks hear of it, and go on without.
TEST(PlannedTensors, one_rank_that_differs_is_named_on_all) {
  struct Case {
    std::function<void(Communicator&)> odd;
    const char* named;
  };
  const Case cases[] = {
      {[](Communicator& me) {
         me.set_plan({.layers = {{"body*", {{0, Way::parse("uniform"), ""}}},
                                 {"head*", {{0, Way{}, ""}, {7, Way::parse("fp16"), ""}}}}});
       },
       "rank 2 has another plan than rank 0: for layer 'head.weight' rank 2 has none, from step 7 "
       "on fp16 where rank 0 has uniform:"},
      {[](Communicator& me) { me.set_plan(plan_of("uniform"), 3); }, "rank 2"},
      {[](Communicator& me) {
         const LayerShape more{"tail", 9};
         me.register_layers({&more, 1});
         me.set_plan(plan_of("uniform"));
       },
       "rank 2 has other layers"},
      {[](Communicator& me) {
         me.set_plan({.layers = {{"nobody", {Stage{}}}}});
       },
       "rank 2 refused it for its layers: no layer matches 'nobody'"},
  };
  for (const Case& odd : cases) {
    auto ranks = Communicator::in_process(4);
    on_all_ranks(ranks, [&](Communicator& me) {
      me.register_layers(layers());
      const std::string error =
          error_of([&] { me.rank() == 2 ? odd.odd(me) : me.set_plan(plan_of("uniform")); });
      const bool own = me.rank() == 2 && error.find("nobody") != std::string::npos;
      EXPECT_TRUE(own || error.find(odd.named) != std::string::npos) << error;
      EXPECT_EQ(exchange(me, 0), exchange(me, 0, Way{}));  // exactly: there is no plan
    });
  }
}

TEST(PlannedTensors, rank_0_that_differs_is_told_who_does_not_agree_with_it) {
  auto ranks = Communicator::in_process(3);
  on_all_ranks(ranks, [&](Communicator& me) {
    me.register_layers(layers());
    const std::string error =
        error_of([&] { me.set_plan(plan_of(me.rank() == 0 ? "sign" : "uniform")); });
    EXPECT_NE(error.find("ranks 1, 2 have another plan"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace gradwire
