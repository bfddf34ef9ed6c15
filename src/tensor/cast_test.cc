#include "tensor/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "tensor/tensor_test_data.h"

namespace gradwire::test {
namespace {

class Cast : public testing::TestWithParam<Dtype> {};  // f16 and bf16

std::uint16_t bits_at(const Tensor& halves, std::size_t i) {
  return load<std::uint16_t>(halves.bytes().data() + 2 * i);
}

Tensor cast_to(const Tensor& from, Dtype dtype) {
  Tensor to(from.count(), dtype);
  kernels::cast(from.view(), to.view(), Into::assign);
  return to;
}

/// All 65 536 values, bit by bit. NaN and infinities included.
Tensor all_halves(Dtype dtype) {
  Tensor halves(1 << 16, dtype);
  auto* const at = static_cast<std::uint16_t*>(halves.view().data);
  for (unsigned bits = 0; bits < 1 << 16; ++bits) at[bits] = static_cast<std::uint16_t>(bits);
  return halves;
}

/// Every exponent and sign, with mantissas at, beside and between the ties of both half precisions.
std::vector<float> telling_floats() {
  std::vector<std::uint32_t> mantissas;
  for (const std::uint32_t tie : {0x1000u, 0x8000u}) {
    for (std::uint32_t step = 0; step < 0x800000; step += 0x7f800 + tie) {
      const std::uint32_t at = step / (2 * tie) * (2 * tie);
      for (const std::uint32_t offset :
           {0u, 1u, tie - 1, tie, tie + 1, 2 * tie - 1, 2 * tie, 3 * tie}) {
        mantissas.push_back((at + offset) & 0x7fffff);
      }
    }
  }
  for (int bit = 0; bit < 23; ++bit)
    mantissas.insert(mantissas.end(), {1u << bit, (1u << bit) - 1, 0x7fffff - (1u << bit)});
  mantissas.push_back(0x7fffff);
  std::vector<float> floats;
  for (std::uint32_t high = 0; high < 512; ++high) {
    for (const std::uint32_t mantissa : mantissas)
      floats.push_back(std::bit_cast<float>(high << 23 | mantissa));
  }
  return floats;
}

TEST_P(Cast, every_half_widens_exactly) {
  const Tensor halves = all_halves(GetParam());
  on_every_isa([&] {
    const Tensor wide = cast_to(halves, Dtype::f32);
    for (std::size_t i = 0; i < halves.count(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(halves[i]))
          << "bits " << i;
    }
  });
}

TEST_P(Cast, floats_round_to_the_nearest_half) {
  const std::vector<float> floats = telling_floats();
  const Tensor expected(floats, GetParam());
  const Tensor from(floats, Dtype::f32);
  on_every_isa([&] {
    const Tensor halves = cast_to(from, GetParam());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(bits_at(halves, i), bits_at(expected, i)) << floats[i];
    }
  });
}

TEST_P(Cast, halves_survive_the_way_through_floats) {
  const Tensor halves = all_halves(GetParam());
  on_every_isa([&] {
    const Tensor back = cast_to(cast_to(halves, Dtype::f32), GetParam());
    for (std::size_t i = 0; i < halves.count(); ++i) {
      ASSERT_TRUE(std::isnan(halves[i]) || bits_at(back, i) == bits_at(halves, i)) << "bits " << i;
    }
  });
}

TEST_P(Cast, sums_are_rounded_once) {
  const std::vector<float> x = gradient_like(1003, 1), y = gradient_like(1003, 2);
  const Tensor held(y, GetParam());
  for (const Dtype source : kDtypes) {
    const Tensor from(x, source);
    std::vector<float> sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] = held[i] + from[i];
    on_every_isa([&] {
      Tensor to = held;
      kernels::cast(from.view(), to.view(), Into::add);
      EXPECT_TRUE(to.bytes() == Tensor(sum, GetParam()).bytes()) << name_of(source);
    });
  }
}

TEST_P(Cast, rounding_in_place_gives_what_a_tensor_would_hold) {
  const std::vector<float> x = gradient_like(3001, 1);
  const Tensor held(x, GetParam());
  std::vector<float> rounded = x;
  kernels::round_to(GetParam(), rounded);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(rounded[i], held[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(, Cast, testing::Values(Dtype::f16, Dtype::bf16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST(CastSame, bits_are_copied) {
  const Tensor halves = all_halves(Dtype::f16);
  EXPECT_TRUE(cast_to(halves, Dtype::f16).bytes() == halves.bytes());
}

}  // namespace
}  // namespace gradwire::test
