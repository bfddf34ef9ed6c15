#include "plan/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/codec_error.h"
#include "plan/cost_presets.h"
#include "plan/models.h"

namespace gradwire {
namespace {

const Codec kNone = Codec::parse("none");
const Codec kSign = Codec::parse("sign");

/// So many seconds per million elements, from a constant on.
CostTable line(double constant, double per_million) {
  return CostTable({{1, constant}, {1'000'000, constant + per_million}});
}

Costs some_costs(double link = 1.0 / 125e6) {
  Costs costs;
  costs.inside = {20e-6, 1e-10};
  costs.between = {100e-6, link};
  costs.codecs[kNone.spec()] = {line(1e-6, 1e-4), line(1e-6, 1e-4), CostTable(), 4, {}, {}};
  costs.codecs[kSign.spec()] = {line(3e-5, 1e-3), line(2e-5, 5e-4), CostTable(), 0.13, {}, {}};
  return costs;
}

Workload random_workload(std::mt19937& random, std::size_t tensors) {
  Workload workload;
  workload.name = "random";
  double ready = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    ready += std::uniform_real_distribution(0.0, 0.02)(random);
    const double exponent = std::uniform_real_distribution(8.0, 23.0)(random);
    workload.tensors.push_back(
        {std::to_string(i), static_cast<std::size_t>(std::exp2(exponent)), ready});
  }
  workload.forward_seconds = 0.01;
  workload.backward_seconds = ready;
  return workload;
}

/// The shortest step of all combinations of these options.
double brute_force(const Workload& workload, const Cluster& cluster, const Costs& costs,
                   const std::vector<Option>& options) {
  const ChainMaker maker(costs, cluster);
  const std::size_t tensors = workload.tensors.size();
  std::vector<std::vector<Chain>> chains(tensors);
  for (std::size_t i = 0; i < tensors; ++i) {
    for (const Option& option : options) {
      chains[i].push_back(maker.make(loads_of(option, 1, cluster), kSign, costs.codec(kSign),
                                     workload.tensors[i].elements));
    }
  }
  Forecast forecast(workload, {costs.shares_compute(), costs.interference});
  std::vector<std::size_t> digits(tensors);
  double least = 1e9;
  for (bool more = true; more;) {
    std::vector<const Chain*> chosen;
    for (std::size_t i = 0; i < tensors; ++i) chosen.push_back(&chains[i][digits[i]]);
    forecast.set(chosen);
    least = std::min(least, forecast.step_seconds());
    more = false;
    for (std::size_t i = 0; i < tensors && !more; ++i) {
      more = ++digits[i] < options.size();
      if (!more) digits[i] = 0;
    }
  }
  return least;
}

/// Of all kinds, among them those that are mostly best.
std::vector<Option> some_options() {
  std::vector<Option> options;
  for (const char* text :
       {"all_reduce", "reduce-broadcast",
        "inside.reduce_scatter-between.all_reduce-inside.all_gather", "encode-all_gather-decode",
        "encode-all_to_all-decode-encode-all_gather-decode",
        "inside.reduce_scatter-encode-between.all_gather-decode-inside.all_gather",
        "inside.reduce_scatter-encode-between.all_to_all-decode-encode-between.all_gather-decode-"
        "inside.all_gather"}) {
    options.push_back(Option::parse(text));
  }
  return options;
}

TEST(Selection, is_as_good_as_trying_everything) {
  std::mt19937 random(7);
  for (int job = 0; job < 40; ++job) {
    const Cluster cluster = job % 2 == 0 ? Cluster{4, 1} : Cluster{2, 4};
    const Costs costs = some_costs(1.0 / std::uniform_real_distribution(1e7, 3e9)(random));
    const Workload workload = random_workload(random, 2 + random() % 4);
    const double best = brute_force(workload, cluster, costs, some_options());
    const double chosen = select(workload, cluster, costs, {.codecs = {kSign}}).step_seconds;
    EXPECT_LE(chosen, 1.01 * best) << "job " << job;
  }
}

TEST(Selection, is_as_good_as_trying_everything_on_two_devices) {
  std::mt19937 random(11);
  std::vector<Option> options;
  for (const char* text :
       {"all_reduce", "inside.reduce_scatter-between.all_reduce-inside.all_gather",
        "inside.reduce_scatter-encode-between.all_gather-decode-inside.all_gather",
        "inside.reduce_scatter-encode@other-between.all_gather-decode@other-inside.all_gather"}) {
    options.push_back(Option::parse(text));
  }
  for (int job = 0; job < 20; ++job) {
    Costs costs = some_costs(1.0 / std::uniform_real_distribution(1e7, 3e9)(random));
    costs.isa = "gpu";
    MeasuredCodec& sign = costs.codecs[kSign.spec()];
    sign.other_encode = line(1e-4, 4e-3);
    sign.other_decode = line(1e-4, 1e-3);
    const Workload workload = random_workload(random, 3 + random() % 4);
    const double best = brute_force(workload, {2, 4}, costs, options);
    const double chosen = select(workload, {2, 4}, costs, {.codecs = {kSign}}).step_seconds;
    EXPECT_LE(chosen, 1.01 * best) << "job " << job;
  }
}

TEST(Selection, is_never_behind_plain_or_all_compressed) {
  for (const char* name : {"vgg16", "resnet101", "bert-base", "lstm"}) {
    for (const double rate : {1.25e7, 1.25e8, 3e9, 1e11}) {
      const Workload workload = model_workload(name, default_step_seconds(name));
      for (const double cores : {1, 4}) {
        const SelectionOptions options{.codecs = {kSign}};
        Costs costs = some_costs(1 / rate);
        costs.cores = cores;
        const Selection selection = select(workload, {8, 8}, costs, options);
        const Baselines base = baselines(workload, {8, 8}, costs, options);
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(rate));
        EXPECT_LE(selection.step_seconds, base.plain_seconds);
        EXPECT_LE(selection.step_seconds, base.all_compressed_seconds);
        EXPECT_GE(selection.step_seconds, workload.compute_seconds());
      }
    }
  }
}

TEST(Selection, compresses_no_more_tensors_than_it_may) {
  const Workload workload = model_workload("bert-base", default_step_seconds("bert-base"));
  const Costs costs = preset_costs("testbed-b");
  const auto compressed = [](const Selection& selection) {
    return static_cast<std::size_t>(std::ranges::count_if(
        selection.choices, [](const Choice& each) { return each.codec != kNone; }));
  };
  SelectionOptions options{.codecs = {kSign}};
  const Selection all = select(workload, {8, 8}, costs, options);
  ASSERT_GT(compressed(all), 40u);
  double before = 1e9;
  for (const std::size_t most : {0, 1, 5, 20, 40}) {
    options.most_compressions = most;
    const Selection some = select(workload, {8, 8}, costs, options);
    EXPECT_LE(compressed(some), most);
    EXPECT_LT(some.step_seconds, before) << most;
    before = some.step_seconds;
  }
  EXPECT_GE(before, all.step_seconds);
}

TEST(Selection, keeps_to_an_error) {
  const Workload workload = model_workload("vgg16", default_step_seconds("vgg16"));
  const Costs costs = preset_costs("cpu");
  const std::vector<Codec> codecs{Codec::parse("uniform:bits=4,bucket=128"),
                                  Codec::parse("uniform:bits=8,bucket=128")};
  for (const double most : {1e-5, 1e-3, 0.1}) {
    const SelectionOptions options{.codecs = codecs, .most_error = most};
    std::size_t lossy = 0;
    for (const Choice& each : select(workload, {4, 1}, costs, options).choices) {
      if (each.codec == kNone) continue;
      ++lossy;
      EXPECT_LE(each.option.encodings() * codec_error(each.codec), most);
    }
    EXPECT_EQ(lossy > 0, most > 1e-5) << most;
  }
}

TEST(Selection, is_no_longer_with_more_options) {
  const Workload workload = model_workload("gpt2", default_step_seconds("gpt2"));
  SelectionOptions few{.codecs = {kSign}};
  few.options = some_options();
  for (const char* testbed : {"testbed-a", "testbed-b"}) {
    const Costs two = preset_costs(testbed);
    Costs one = two;
    for (auto& [spec, codec] : one.codecs) codec.other_encode = codec.other_decode = CostTable();
    const Selection by_two = select(workload, {8, 8}, two, {.codecs = {kSign}});
    const Selection by_one = select(workload, {8, 8}, one, {.codecs = {kSign}});
    EXPECT_LE(by_two.step_seconds, by_one.step_seconds * 1.001);
    EXPECT_LE(by_one.step_seconds, select(workload, {8, 8}, one, few).step_seconds * 1.001);
    for (const Choice& each : by_one.choices) EXPECT_FALSE(each.option.needs_second_device());
  }
}

TEST(Selection, of_a_thousand_tensors_of_a_thousand_ranks) {
  std::mt19937 random(5);
  const Workload workload = random_workload(random, 1000);
  const Costs costs = preset_costs("testbed-b");
  const SelectionOptions options{.codecs = {kSign}};
  const Selection selection = select(workload, {128, 8}, costs, options);
  EXPECT_EQ(selection.choices.size(), 1000u);
  const Baselines base = baselines(workload, {128, 8}, costs, options);
  EXPECT_LE(selection.step_seconds, base.plain_seconds);
  EXPECT_LE(selection.step_seconds, base.all_compressed_seconds);
  EXPECT_GE(selection.step_seconds, base.least_seconds);
}

TEST(Selection, is_no_shorter_than_the_least) {
  for (const char* name : {"lstm", "vgg16"}) {
    const Workload workload = model_workload(name, default_step_seconds(name));
    const Costs costs = preset_costs("testbed-b");
    const SelectionOptions options{.codecs = {kSign}};
    const Selection selection = select(workload, {8, 8}, costs, options);
    const double least = baselines(workload, {8, 8}, costs, options).least_seconds;
    EXPECT_GE(selection.step_seconds, least);
    EXPECT_LE(selection.step_seconds, 1.08 * least) << name;
  }
}

}  // namespace
}  // namespace gradwire
