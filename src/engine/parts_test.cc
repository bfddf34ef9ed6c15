// Parts of several tensors in one reduce_scatter or all_gather: as if each tensor went alone.
#include "engine/parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

/// A tensor of which every rank has a part.
struct Kind {
  std::size_t part;  // elements
  const char* codec;
};
constexpr Kind kKinds[] = {{1000, "none"},
                           {0, "grid"},
                           {1, "uniform:bits=4"},
                           {40'003, "grid:step=0.1,rounding=nearest"},
                           {127, "sign"},
                           {0, "none"},
                           {4097, "uniform:bits=4"},
                           {128, "grid:nmse=0.01,rounding=dither"},
                           {129, "none"}};
constexpr std::size_t kTensors = std::size(kKinds);

/// One rank's memory: what is rank 0's of all tensors, then what is rank 1's, and so on.
class Memory {
 public:
  Memory(std::uint32_t ranks, std::uint32_t me) : ranks_(ranks) {
    std::mt19937 random(me);
    std::normal_distribution<float> normal;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const Kind& kind : kKinds) {
        starts_.push_back(numbers_.size());
        Numbers part = integers(kind.part, me + rank);
        if (std::string(kind.codec) != "none") {
          for (float& x : part) x = normal(random) * static_cast<float>(1 + rank);
        }
        numbers_.insert(numbers_.end(), part.begin(), part.end());
      }
    }
  }

  std::vector<Tensor> parts() {
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      const Kind& kind = kKinds[i % kTensors];
      result.push_back({std::to_string(i % kTensors),
                        {numbers_.data() + starts_[i], kind.part},
                        Way::parse(kind.codec)});
    }
    return result;
  }
  Numbers part(std::uint32_t rank, std::size_t tensor) const {
    const auto begin = numbers_.begin() + starts_[rank * kTensors + tensor];
    return {begin, begin + kKinds[tensor].part};
  }
  /// The parts of one tensor, one after the other.
  Numbers joined(std::size_t tensor) const {
    Numbers result;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const Numbers next = part(rank, tensor);
      result.insert(result.end(), next.begin(), next.end());
    }
    return result;
  }

 private:
  std::uint32_t ranks_;
  Numbers numbers_;
  std::vector<std::size_t> starts_;
};

Numbers part_of(const Numbers& joined, std::size_t part, std::uint32_t rank) {
  return {joined.begin() + rank * part, joined.begin() + (rank + 1) * part};
}

class PartsOfSeveralTensors : public testing::TestWithParam<std::uint32_t> {};

TEST_P(PartsOfSeveralTensors, are_reduced_as_if_each_went_alone) {
  const std::uint32_t size = GetParam();
  RanksHere ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 4096}});
  on_all_ranks(ranks, [&](Communicator& me) {
    Memory together(size, me.rank());
    const Memory before = together;
    me.reduce_scatter(together.parts(), {.seed = 3, .step = 5}).wait();
    for (std::size_t i = 0; i < kTensors; ++i) {
      const auto [part, codec] = kKinds[i];
      Numbers alone = before.joined(i);
      me.reduce_scatter({std::to_string(i), {alone.data(), alone.size()}, Way::parse(codec)},
                        {.seed = 3, .step = 5})
          .wait();
      const Numbers result = together.part(me.rank(), i);
      EXPECT_TRUE(same_bits(result, part_of(alone, part, me.rank()))) << codec << ", " << part;
      if (std::string(codec) != "none") continue;
      Numbers sum(part);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        const Numbers x = integers(part, rank + me.rank());
        for (std::size_t j = 0; j < part; ++j) sum[j] += x[j];
      }
      EXPECT_EQ(result, sum) << part;
    }
  });
}

TEST_P(PartsOfSeveralTensors, are_gathered_as_if_each_went_alone) {
  const std::uint32_t size = GetParam();
  RanksHere ranks = Communicator::in_process(size, {.tuning = {.piece_elements = 4096}});
  std::vector<Memory> together;
  for (std::uint32_t rank = 0; rank < size; ++rank) together.emplace_back(size, rank);
  const std::vector<Memory> before = together;
  on_all_ranks(ranks, [&](Communicator& me) {
    me.all_gather(together[me.rank()].parts(), {.seed = 3, .step = 5}).wait();
    for (std::size_t i = 0; i < kTensors; ++i) {
      const auto [part, codec] = kKinds[i];
      Numbers alone = before[me.rank()].joined(i);
      me.all_gather({std::to_string(i), {alone.data(), alone.size()}, Way::parse(codec)},
                    {.seed = 3, .step = 5})
          .wait();
      const Numbers result = together[me.rank()].joined(i);
      EXPECT_TRUE(same_bits(result, alone)) << codec << ", " << part;
      for (std::uint32_t rank = 0; rank < size && std::string(codec) == "none"; ++rank) {
        EXPECT_EQ(part_of(result, part, rank), before[rank].part(rank, i)) << part;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(ranks, PartsOfSeveralTensors, testing::Range(1u, 6u),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

TEST(AllGather, what_lies_in_the_parts_of_others_changes_nothing) {
  const auto gathered = [](float junk) {
    RanksHere ranks = Communicator::in_process(2);
    std::vector<Numbers> x(2, Numbers(2000, junk));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const Numbers own = integers(1000, rank);
      std::copy(own.begin(), own.end(), x[rank].begin() + rank * 1000);
    }
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers& own = x[me.rank()];
      me.all_gather({"x", {own.data(), own.size()}, Way::parse("grid:step=0.5")}).wait();
    });
    return x[0];
  };
  EXPECT_EQ(gathered(0), gathered(1e6f));
}

TEST(ReduceScatter, a_tensors_step_is_the_same_in_all_of_its_parts) {
  // The second part is so small beside the first that one step for both takes it for zeros.
  RanksHere ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers large(1000, 1000.0f);
    Numbers small(1000, 0.001f);
    const Way way = Way::parse("grid:step=0.5,locality=0,rounding=nearest");
    const Tensor parts[] = {{"x", {large.data(), 1000}, way}, {"x", {small.data(), 1000}, way}};
    me.reduce_scatter(parts).wait();
    if (me.rank() == 0) {
      const double step = 0.5 * 1000 * std::sqrt(0.5);  // half the rms of both parts
      EXPECT_NEAR(large[0], 1000 + 3 * step, 0.01);
    } else {
      EXPECT_EQ(small, Numbers(1000, 0.001f)) << "the other rank's are lost";
    }
  });
}

// ---------------------------------------------------------------------------------------------

/// Expects that both operations refuse the parts at once, with these words.
void expect_refused(std::span<const Tensor> parts, const std::string& words) {
  RanksHere ranks = Communicator::in_process(2);
  const auto expect = [&](auto operation) {
    try {
      operation();
      ADD_FAILURE() << "not refused: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect([&] { ranks[0]->reduce_scatter(parts); });
  expect([&] { ranks[0]->all_gather(parts); });
}

TEST(Parts, that_are_not_equally_many_for_each_rank_are_refused) {
  Numbers x(30);
  const Tensor part{"x", {x.data(), 10}};
  const Tensor parts[] = {part, part, part};
  expect_refused(parts, "3 parts are not equally many for each of 2 ranks: pass those of rank 0");
}

TEST(Parts, that_differ_between_ranks_are_refused) {
  Numbers x(30);
  const Tensor part{"x", {x.data(), 10}, Way{}};
  Tensor longer = part;
  longer.view.count = 11;
  Tensor half = part;
  half.view.dtype = Dtype::bf16;
  Tensor compressed = part;
  compressed.way = Way::parse("uniform:bits=4");
  Tensor renamed = part;
  renamed.name = "y";
  for (const Tensor& other : {longer, half, compressed, renamed}) {
    const Tensor parts[] = {part, part, part, other};
    expect_refused(parts, "part 1 of rank 1 is '" + other.name + "' with " +
                              std::to_string(other.view.count) + " elements of " +
                              name_of(other.view.dtype) + " and " + other.way->text() +
                              ", but that of rank 0 is 'x' with 10 elements of f32 and none");
  }
}

TEST(Parts, without_memory_are_refused) {
  Numbers x(10);
  const Tensor parts[] = {{"x", {x.data(), 10}}, {"x", {nullptr, 10}}};
  expect_refused(parts, "tensor 'x' has no memory");
}

}  // namespace
}  // namespace gradwire
