// Every algorithm with every number of ranks from 1 to 17, every count, 1 to 4 lanes and every
// codec, on one host and on several: exact sums or bounded errors, and equal bits on all ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "engine/engine_test_ranks.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr std::size_t kPiece = 1024;  // elements; what is larger takes several pieces

/// A codec, and the largest share of a Gaussian's energy that one encoding may lose.
struct Kind {
  const char* codec;
  double error;
};
constexpr Kind kKinds[] = {{"none", 0},
                           {"fp16", 1e-6},
                           {"bf16", 1e-5},
                           {"uniform:bits=8", 3e-4},
                           {"uniform:bits=4,bucket=100", 0.03},
                           {"exponential:bits=8", 0.1},
                           {"sign", 0.7},
                           {"grid:step=0.1", 0.003},
                           {"grid:step=0.1,rounding=dither", 0.0015},
                           {"grid:nmse=0.01,rounding=nearest", 0.02}};

struct Case {
  std::string algorithm;
  std::size_t count;
  Kind kind;
};

std::vector<Case> cases_for(std::uint32_t size) {
  std::vector<Case> cases;
  for (const std::string& algorithm : usable_algorithms(size)) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{size - 1}, std::size_t{size},
          std::size_t{size + 1}, std::size_t{127}, std::size_t{1009}, 5 * kPiece + 7}) {
      for (const Kind& kind : kKinds) cases.push_back({algorithm, count, kind});
    }
  }
  return cases;
}

/// What rank `rank` contributes: integers where sums must be exact, Gaussians elsewhere.
Numbers input(const Case& c, std::uint32_t rank) {
  if (c.kind.error == 0) return integers(c.count, rank);
  std::mt19937 random(rank * 1000 + static_cast<std::uint32_t>(c.count));
  std::normal_distribution<float> normal;
  Numbers x(c.count);
  for (float& value : x) value = normal(random);
  return x;
}

/// The error's share of the sum's energy.
double loss(const Case& c, const Numbers& result, std::uint32_t size) {
  std::vector<double> sum(c.count);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    const Numbers x = input(c, rank);
    for (std::size_t i = 0; i < c.count; ++i) sum[i] += x[i];
  }
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < c.count; ++i) {
    error += (result[i] - sum[i]) * (result[i] - sum[i]);
    energy += sum[i] * sum[i];
  }
  return error / energy;
}

void check(const Case& c, const std::vector<Numbers>& results) {
  const auto size = static_cast<std::uint32_t>(results.size());
  for (const Numbers& result : results) ASSERT_TRUE(same_bits(result, results[0]));
  if (c.kind.error == 0) {
    ASSERT_EQ(results[0], sum_of_all(c.count, size));
    return;
  }
  if (c.count < 1000) return;  // few numbers have no typical error
  const double lost = loss(c, results[0], size);
  // A ring encodes a growing sum in every hop, the others each number twice.
  ASSERT_LT(lost, c.kind.error * (1.5 + size / 2.0));
  ASSERT_EQ(lost > 0, size > 1);
}

class AllReduceProperty : public testing::TestWithParam<std::uint32_t> {};

TEST_P(AllReduceProperty, holds_for_all_algorithms_counts_lanes_and_codecs) {
  const std::uint32_t size = GetParam();
  const std::vector<Case> cases = cases_for(size);
  for (const std::uint32_t lanes : {1u, 2u, 3u, 4u}) {
    const std::uint32_t per_host = size % lanes == 0 ? lanes : size;  // as good as any
    RanksHere ranks = Communicator::in_process(
        size, {.tuning = {.lanes = lanes, .piece_elements = kPiece}}, per_host);
    std::vector<std::vector<Numbers>> results(cases.size(), std::vector<Numbers>(size));
    on_all_ranks(ranks, [&](Communicator& me) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        Numbers& x = results[i][me.rank()] = input(cases[i], me.rank());
        const Tensor tensor{"x", {x.data(), x.size()}, by(cases[i].algorithm, cases[i].kind.codec)};
        me.all_reduce({&tensor, 1}, {.seed = 3}).wait();
      }
    });
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i].algorithm + ", " + cases[i].kind.codec + ", " +
                   std::to_string(cases[i].count) + " numbers, " + std::to_string(lanes) +
                   " lanes");
      check(cases[i], results[i]);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, AllReduceProperty, testing::Range(1u, 18u),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

// ---------------------------------------------------------------------------------------------

using Halves = std::vector<std::uint16_t>;

Halves rounded(const Numbers& numbers, Dtype dtype) {
  Halves halves(numbers.size());
  kernels::cast({numbers.data(), numbers.size()}, {halves.data(), halves.size(), dtype},
                Into::assign);
  return halves;
}

/// Whole numbers, so that sums are exact in fp32; in half precision most of their partial sums
/// overflow or are rounded.
Numbers near_the_limit(std::size_t count, std::uint32_t rank, Dtype dtype) {
  std::mt19937 random(rank);
  std::uniform_int_distribution<int> number(-60'000, 65'000);
  Numbers x(count);
  for (float& value : x) value = static_cast<float>(number(random));
  const Halves halves = rounded(x, dtype);
  kernels::cast({halves.data(), count, dtype}, {x.data(), count}, Into::assign);
  return x;
}

struct Hosts {
  std::uint32_t count, per_host;
};

class HalfPrecision : public testing::TestWithParam<Hosts> {};

TEST_P(HalfPrecision, sums_are_rounded_once_whoever_adds_up) {
  constexpr std::size_t kCount = 2 * kPiece + 300;
  const std::uint32_t size = GetParam().count * GetParam().per_host;
  RanksHere ranks =
      Communicator::in_process(size, {.tuning = {.piece_elements = kPiece}}, GetParam().per_host);
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    Numbers sum(kCount);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const Numbers x = near_the_limit(kCount, rank, dtype);
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += x[i];
    }
    for (const bool average : {false, true}) {
      Numbers expected = sum;
      for (float& value : expected) value *= average ? 1 / static_cast<float>(size) : 1;
      for (const std::string& algorithm : usable_algorithms(size, GetParam().per_host)) {
        std::vector<Halves> results(size);
        on_all_ranks(ranks, [&](Communicator& me) {
          Halves& x = results[me.rank()];
          x = rounded(near_the_limit(kCount, me.rank(), dtype), dtype);
          const Tensor tensor{"x", {x.data(), kCount, dtype}, by(algorithm)};
          me.all_reduce({&tensor, 1}, {.average = average}).wait();
        });
        for (const Halves& result : results) {
          EXPECT_EQ(result, rounded(expected, dtype))
              << algorithm << ", " << name_of(dtype) << (average ? ", average" : "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HalfPrecision,
                         testing::Values(Hosts{1, 1}, Hosts{1, 5}, Hosts{3, 1}, Hosts{2, 2},
                                         Hosts{3, 2}, Hosts{2, 3}, Hosts{4, 3}, Hosts{5, 2}),
                         [](const auto& hosts) {
                           return std::to_string(hosts.param.count) + "_hosts_of_" +
                                  std::to_string(hosts.param.per_host);
                         });

// ---------------------------------------------------------------------------------------------

/// More than 2^32 floats, all zero but for the last ones: the same few megabytes of memory over and
/// over, which sums of zeros do not change, and then memory of its own.
class HugeTensor {
 public:
  static constexpr std::size_t kWindow = std::size_t{64} << 20;
  static constexpr std::size_t kZeros = std::size_t{16} << 30;  // bytes
  static constexpr std::size_t kTail = 1000;                    // elements behind them
  static constexpr std::size_t kCount = kZeros / sizeof(float) + kTail;

  HugeTensor() {
    const int file = memfd_create("huge", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, kWindow), 0);
    base_ = static_cast<std::byte*>(mmap(nullptr, kZeros + kWindow, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t at = 0; at < kZeros; at += kWindow) {
      mmap(base_ + at, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    }
    close(file);
  }
  ~HugeTensor() { munmap(base_, kZeros + kWindow); }
  HugeTensor(const HugeTensor&) = delete;
  HugeTensor& operator=(const HugeTensor&) = delete;

  TensorView view() const { return {base_, kCount, Dtype::f32}; }
  std::span<float> first() const { return {reinterpret_cast<float*>(base_), kTail}; }
  std::span<float> tail() const { return {reinterpret_cast<float*>(base_ + kZeros), kTail}; }

 private:
  std::byte* base_;
};

TEST(HugeAllReduce, elements_beyond_32_bits_are_added_in_their_place) {
  RanksHere ranks = Communicator::in_process(2, {.tuning = {.piece_elements = 1 << 20}});
  on_all_ranks(ranks, [](Communicator& me) {
    const HugeTensor x;
    const Numbers mine = integers(HugeTensor::kTail, me.rank());
    std::copy(mine.begin(), mine.end(), x.tail().begin());
    const Tensor tensor{"x", x.view()};
    me.all_reduce({&tensor, 1}, {.timeout = std::chrono::minutes(5)}).wait();
    EXPECT_EQ(Numbers(x.tail().begin(), x.tail().end()), sum_of_all(HugeTensor::kTail, 2));
    EXPECT_EQ(Numbers(x.first().begin(), x.first().end()), Numbers(HugeTensor::kTail));
  });
}

}  // namespace
}  // namespace gradwire
