// What operations say they sent and lost, tensor by tensor.
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "engine/engine_test_ranks.h"
#include "gradwire/frame.h"

namespace gradwire {
namespace {

constexpr std::size_t kSegmentHeader = 32;

/// Tensors of many kinds with their memory, which ranks can share equally.
struct Mixed {
  std::vector<Numbers> numbers;
  std::vector<Tensor> tensors;

  Mixed(std::uint32_t ranks, std::uint32_t me) {
    const char* codecs[] = {"none", "grid", "uniform:bits=4", "sign", "none", "grid:step=0.1"};
    const std::size_t counts[] = {1000, 0, 127, 70'001, 1, 4097};
    for (std::size_t i = 0; i < std::size(counts); ++i) {
      Numbers& x = numbers.emplace_back(gaussian(counts[i] * ranks, me));
      tensors.push_back({std::to_string(i), {x.data(), x.size()}, Way::parse(codecs[i])});
    }
  }
  std::vector<Tensor> parts(std::uint32_t ranks) const {
    std::vector<Tensor> result;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (Tensor part : tensors) {
        part.view = part.view.slice(rank * part.view.count / ranks, part.view.count / ranks);
        result.push_back(part);
      }
    }
    return result;
  }
};

void expect_complete(const Statistics& statistics, std::size_t tensors, const std::string& what) {
  ASSERT_EQ(statistics.tensors.size(), tensors) << what;
  std::uint64_t bytes = statistics.sent_messages * kFrameOverheadBytes;
  for (const TensorStatistics& tensor : statistics.tensors) bytes += tensor.sent_bytes;
  EXPECT_EQ(bytes, statistics.sent_bytes) << what;
}

void expect_all_operations_complete(Communicator& me) {
  const std::uint32_t size = me.size();
  Mixed mixed(size, me.rank());
  const std::size_t count = mixed.tensors.size();
  const auto expect = [&](Work work, std::size_t tensors, const std::string& what) {
    work.wait();
    expect_complete(work.statistics(), tensors, what + ", " + std::to_string(size) + " ranks");
  };
  for (const std::string& algorithm : usable_algorithms(size)) {
    std::vector<Tensor> tensors = mixed.tensors;
    for (Tensor& tensor : tensors) tensor.way->route = algorithm;
    expect(me.all_reduce(tensors), count, algorithm);
  }
  expect(me.reduce_scatter(mixed.parts(size)), count, "reduce_scatter");
  expect(me.all_gather(mixed.parts(size)), count, "all_gather");
  expect(me.reduce_scatter(mixed.tensors[3]), 1, "reduce_scatter of one");
  expect(me.broadcast(mixed.tensors, size - 1), count, "broadcast");
  expect(me.barrier(), 0, "barrier");
}

TEST(Statistics, tensors_and_headers_are_all_that_is_sent) {
  for (const std::uint32_t size : {1u, 2u, 3u, 5u}) {
    for (const std::size_t piece : {4096, 1 << 17}) {
      RanksHere ranks = Communicator::in_process(size, {.tuning = {.piece_elements = piece}});
      on_all_ranks(ranks, expect_all_operations_complete);
    }
  }
}

TEST(Statistics, workers_count_what_is_sent) {
  RanksHere ranks =
      Communicator::in_process(3, {.tuning = {.threads = 3, .piece_elements = 1 << 16}});
  on_all_ranks(ranks, expect_all_operations_complete);
}

TEST(Statistics, a_message_counts_as_often_as_it_is_sent) {
  constexpr std::size_t kCount = 3 * 1024;
  constexpr std::size_t kChunk = kSegmentHeader + kCount / 3 * sizeof(float);
  RanksHere ranks = Communicator::in_process(3);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x = integers(kCount, me.rank());
    const Tensor tensor{"x", {x.data(), x.size()}};
    const auto sent = [](Work work) {
      work.wait();
      return work.statistics().tensors.at(0).sent_bytes;
    };
    // Two chunks to their owners, the sum of one's own to two.
    const Tensor by_owners{"x", tensor.view, by("sra")}, around{"x", tensor.view, by("ring")};
    EXPECT_EQ(sent(me.all_reduce({&by_owners, 1})), 4 * kChunk);
    // Partial sums and sums go around: two chunks of each are passed on.
    EXPECT_EQ(sent(me.all_reduce({&around, 1})), 4 * kChunk);
    EXPECT_EQ(sent(me.reduce_scatter(tensor)), 2 * kChunk);
    EXPECT_EQ(sent(me.all_gather(tensor)), 2 * kChunk);
    const std::size_t whole = kSegmentHeader + kCount * sizeof(float);
    EXPECT_EQ(sent(me.broadcast({&tensor, 1}, 0)), me.rank() == 0 ? 2 * whole : 0);
  });
}

// ---------------------------------------------------------------------------------------------

struct Loss {
  double squared_error = 0;
  double energy = 0;
};

/// What a codec, fitted to `layer`, loses of `x`, which becomes just that.
Loss lose(const Codec& codec, const Numbers& layer, Numbers& x, const RandomKey& key) {
  const Codec fitted = codec.fit({layer.data(), layer.size()});
  std::vector<std::byte> bytes(fitted.max_encoded_bytes(x.size()));
  Numbers decoded(x.size());
  const Encoded encoded = fitted.encode({x.data(), x.size()}, {key}, bytes);
  check(encoded.status);
  check(fitted.decode(std::span(bytes).first(encoded.bytes), Dtype::f32,
                      {decoded.data(), decoded.size()}));
  Loss loss;
  for (std::size_t i = 0; i < x.size(); ++i) {
    loss.energy += double{x[i]} * x[i];
    x[i] -= decoded[i];
    loss.squared_error += double{x[i]} * x[i];
  }
  return loss;
}

void expect_near(const TensorStatistics& found, const Loss& expected, const std::string& what) {
  EXPECT_NEAR(found.measured_energy, expected.energy, 1e-9 * expected.energy) << what;
  EXPECT_NEAR(found.squared_error, expected.squared_error, 1e-9 * expected.squared_error) << what;
}

const char* const kCodecs[] = {"none", "uniform:bits=4", "sign:bucket=128", "grid:step=0.5",
                               "grid:nmse=0.01,rounding=dither"};

TEST(MeasuredError, is_that_of_the_codec) {
  constexpr std::size_t kCount = 10'003;
  for (const std::size_t piece : {1024, 1 << 17}) {
    RanksHere ranks = Communicator::in_process(2, {.tuning = {.piece_elements = piece}});
    on_all_ranks(ranks, [&](Communicator& me) {
      std::vector<Numbers> x(std::size(kCodecs), gaussian(kCount, me.rank()));
      const Numbers before = x[0];
      std::vector<Tensor> tensors;
      for (std::size_t i = 0; i < x.size(); ++i) {
        tensors.push_back({kCodecs[i], {x[i].data(), kCount}, by("allgather", kCodecs[i])});
      }
      // Everybody encodes all of its numbers.
      Work work = me.all_reduce(tensors, {.seed = 3, .step = 5, .measure_error = true});
      work.wait();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::string name = kCodecs[i];
        const RandomKey key{3, 5, checksum(std::as_bytes(std::span(name))), me.rank()};
        Numbers rest = before;
        const Loss expected = lose(tensors[i].way->codec, before, rest, key);
        expect_near(work.statistics().tensors[i], expected, name);
        EXPECT_EQ(expected.squared_error > 0, name != "none") << name;
      }
    });
  }
}

TEST(MeasuredError, is_of_the_numbers_with_their_residuals) {
  constexpr std::size_t kCount = 3001;
  RanksHere ranks = Communicator::in_process(2, {.tuning = {.piece_elements = 1024}});
  on_all_ranks(ranks, [&](Communicator& me) {
    const Way way = by("allgather", "grid:step=2,rounding=nearest+feedback");
    Numbers rest(kCount);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Numbers x = gaussian(kCount, me.rank() + 2 * step);
      for (std::size_t i = 0; i < kCount; ++i) rest[i] += x[i];
      const Numbers numbers = rest;
      const Tensor tensor{"x", {x.data(), kCount}, way};
      Work work = me.all_reduce({&tensor, 1}, {.measure_error = true});
      work.wait();
      expect_near(work.statistics().tensors[0], lose(way.codec, numbers, rest, {}), "feedback");
    }
  });
}

TEST(MeasuredError, of_other_dtypes_is_that_of_their_numbers) {
  constexpr std::size_t kCount = 500;
  RanksHere ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    std::vector<std::uint16_t> ones(kCount, 0x3f80);  // bf16
    for (const char* codec : {"none", "sign"}) {      // of ones, sign loses nothing, either
      const Tensor tensor{"x", {ones.data(), kCount, Dtype::bf16}, Way::parse(codec)};
      Work work = me.broadcast({&tensor, 1}, 0, {.measure_error = true});
      work.wait();
      const TensorStatistics found = work.statistics().tensors[0];
      EXPECT_EQ(found.measured_energy, me.rank() == 0 ? kCount : 0) << codec;
      EXPECT_EQ(found.squared_error, 0) << codec;
    }
  });
}

TEST(MeasuredError, is_of_what_a_rank_sends) {
  constexpr std::size_t kPart = 1000;
  RanksHere ranks = Communicator::in_process(3);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x(3 * kPart);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i < kPart ? 1 : i < 2 * kPart ? 2 : 3;
    const Tensor tensor{"x", {x.data(), x.size()}};
    Work work = me.reduce_scatter(tensor, {.measure_error = true});
    work.wait();
    const double own = (1.0 + me.rank()) * (1.0 + me.rank());
    EXPECT_EQ(work.statistics().tensors.at(0).measured_energy, kPart * (1.0 + 4.0 + 9.0 - own));
  });
}

TEST(MeasuredError, is_that_of_all_when_asked_for_and_changes_no_bit) {
  RanksHere ranks = Communicator::in_process(3);
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers results[2];
    for (const bool measured : {false, true}) {
      Numbers& x = results[measured] = gaussian(100'000, me.rank());
      const Tensor tensor{"x", {x.data(), x.size()}, by("sra", "uniform:bits=2")};
      Work work = me.all_reduce({&tensor, 1}, {.step = 1, .measure_error = measured});
      work.wait();
      const TensorStatistics found = work.statistics().tensors[0];
      EXPECT_EQ(found.measured_energy > 0.5 * found.energy, measured);
      EXPECT_EQ(found.squared_error > 0, found.measured_energy > 0);
    }
    EXPECT_TRUE(same_bits(results[0], results[1]));
  });
}

}  // namespace
}  // namespace gradwire
