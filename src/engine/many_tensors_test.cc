// Thousands of tensors of one number: a message of them is many times larger than its numbers.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_test_ranks.h"
#include "transport/inproc.h"

namespace gradwire {
namespace {

constexpr const char* kCodecs[] = {"none",           "fp16",
                                   "bf16",           "uniform:bits=8,bucket=1",
                                   "exponential",    "sign",
                                   "grid",           "topk",
                                   "topk:density=1", "topk:values=mean",
                                   "randomk",        "topk:density=0.1,values=int8"};

std::vector<Tensor> one_by_one(Numbers& numbers, const Way& way) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    tensors.push_back({std::to_string(i), {&numbers[i], 1}, way});
  }
  return tensors;
}

void expect_summed(RanksHere& ranks, std::size_t count, const char* codec,
                   const std::string& algorithm) {
  const auto size = static_cast<float>(ranks.size());
  std::vector<Numbers> x(ranks.size(), Numbers(count, 2.0f));
  on_all_ranks(ranks, [&](Communicator& me) {
    ASSERT_NO_THROW(me.all_reduce(one_by_one(x[me.rank()], by(algorithm, codec))).wait());
  });
  for (const Numbers& result : x) ASSERT_TRUE(same_bits(result, x[0]));
  if (!Codec::parse(codec).traits().lossless) return;
  ASSERT_EQ(x[0], Numbers(count, 2 * size));
}

TEST(ManyTensors, of_one_number_are_reduced_with_every_codec_and_algorithm) {
  for (const char* codec : kCodecs) {
    // As over a network: as much as it likes.
    auto ranks = Communicator::in_process(
        4, {.tuning = {.piece_elements = std::size_t{1} << 19}, .timeout = kMaxTimeout}, 2);
    for (const std::string& algorithm : usable_algorithms(4, 2)) {
      SCOPED_TRACE(std::string(codec) + ", " + algorithm);
      expect_summed(ranks, 3500, codec, algorithm);
      if (HasFatalFailure()) return;
    }
    SCOPED_TRACE(codec);
    expect_summed(ranks, 20'000, codec, "auto");
    if (HasFatalFailure()) return;
  }
}

TEST(ManyTensors, of_one_number_are_shared_out_and_gathered) {
  for (const char* codec : kCodecs) {
    SCOPED_TRACE(codec);
    auto ranks = Communicator::in_process(
        3, {.tuning = {.piece_elements = std::size_t{1} << 19}, .timeout = kMaxTimeout});
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers x(3 * 3500, 2.0f);
      std::vector<Tensor> parts = one_by_one(x, Way::parse(codec));
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i].name = std::to_string(i % 3500);
      ASSERT_NO_THROW(me.reduce_scatter(parts).wait());
      ASSERT_NO_THROW(me.all_gather(parts).wait());
      ASSERT_NO_THROW(me.broadcast(parts, 1).wait());
    });
    if (HasFatalFailure()) return;
  }
}

/// What the engine must never come to, since pieces are cut so that their messages fit.
TEST(ManyTensors, that_do_not_fit_a_lane_are_this_ranks_fault) {
  auto transports = make_inproc(2, 64 << 10);
  std::vector<std::string> errors(2);
  {
    std::vector<std::unique_ptr<engine::Engine>> engines;
    std::vector<Numbers> x(2, Numbers(100'000));
    std::vector<Work> works;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      engines.push_back(std::make_unique<engine::Engine>(
          std::move(transports[rank]),
          engine::EngineOptions{.rank = rank, .size = 2, .lanes = 1, .in_memory = true}));
      auto operation = std::make_shared<engine::Operation>();
      const Ranks ranks{.count = 2, .per_host = 2};
      operation->collective = Collective::all_reduce;
      const auto routine = std::make_shared<engine::Routine>(
          find_algorithm("allgather", Collective::all_reduce, ranks), Collective::all_reduce, ranks,
          rank);
      const Codec codec = Codec::parse("none");
      const std::size_t count = rank == 0 ? x[0].size() : 100;  // rank 1's would fit
      engine::Line line{
          .items = {0}, .layout = engine::Layout(std::vector{count}), .routine = routine};
      line.cut = {line.layout.size(), std::size_t{1} << 20, 0};
      operation->recipe = std::make_shared<engine::Recipe>(
          engine::Recipe{.lines = {line}, .pieces = {{routine, {{0, 0}}}}});
      operation->items.push_back({.view = {x[rank].data(), count}});
      operation->sources.push_back({.codec = codec,
                                    .sums_codec = codec,
                                    .input = {{x[rank].data(), count}},
                                    .prepared = true});
      operation->deadline = Clock::now() + std::chrono::seconds(20);
      operation->work = std::make_shared<engine::WorkState>();
      operation->work->statistics.tensors.resize(1);
      works.emplace_back(operation->work);
      engines.back()->submit(std::move(operation));
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      try {
        works[rank].wait();
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    }
  }
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0 cannot encode its numbers"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace gradwire
