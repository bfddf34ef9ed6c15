// The scalar loops here are the specification: every instruction set gives their bits.
#include "tensor/arithmetic.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "tensor/cast.h"
#include "tensor/tensor_test_data.h"

namespace gradwire::test {
namespace {

using Numbers = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

float finite_or_zero(float x) { return std::isfinite(x) ? x : 0; }

/// Calls check(numbers of this length, some not finite) on every instruction set.
template <class Check>
void on_every_isa_and_length(Check check) {
  on_every_isa([&] {
    for (const std::size_t n : {0u, 1u, 7u, 8u, 31u, 1000u, 2051u}) {
      Numbers a = gradient_like(n, 1), b = gradient_like(n, 2), c = gradient_like(n, 3);
      if (n > 20) {
        a[3] = kInfinity;
        b[9] = std::nanf("");
        c[n - 1] = -kInfinity;
        a[n - 2] = -0.0f;
      }
      check(a, b, c);
    }
  });
}

TEST(Arithmetic, scaling_multiplies) {
  on_every_isa_and_length([](Numbers a, const Numbers&, const Numbers&) {
    Numbers expected = a;
    for (float& x : expected) x *= 0.3f;
    kernels::scale(a, 0.3f);
    EXPECT_TRUE(same_bits(a, expected));
  });
}

TEST(Arithmetic, energy_is_eight_sums_of_squares) {
  on_every_isa_and_length([](const Numbers&, const Numbers& b, const Numbers&) {
    Numbers finite = b;
    for (float& x : finite) x = finite_or_zero(x);
    std::array<double, 8> sums{};
    for (std::size_t i = 0; i < finite.size(); ++i) {
      sums[i % 8] += double{finite[i]} * double{finite[i]};
    }
    EXPECT_EQ(kernels::energy(finite), std::accumulate(sums.begin(), sums.end(), 0.0));
  });
  EXPECT_TRUE(std::isnan(kernels::energy(Numbers{1, std::nanf(""), 2})));
}

TEST(Arithmetic, quick_energies_are_nearly_exact_and_the_same_on_every_isa) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const std::size_t n : {0u, 1u, 255u, 256u, 1000u, 100'003u}) {
      for (const float size : {1.0f, 0x1p-75f, 0x1p+70f}) {
        Numbers x = gradient_like(n, 4);
        for (float& number : x) number *= size;
        const Tensor tensor(x, dtype);
        kernels::cast(tensor.view(), {x.data(), n, Dtype::f32}, Into::assign);
        double exact = 0;
        for (const float number : x) exact += double{number} * number;
        std::optional<double> first;
        on_every_isa([&] {
          const double found = kernels::quick_energy(tensor.view());
          if (!first) first = found;
          EXPECT_TRUE(found == *first || std::isnan(exact - exact)) << n;
          if (std::isfinite(exact)) {
            EXPECT_NEAR(found, exact, 1e-6 * exact) << n;
          }
          EXPECT_EQ(std::isfinite(found), std::isfinite(exact)) << n;
        });
      }
    }
  }
}

TEST(Arithmetic, one_number_that_is_not_finite_is_found_wherever_it_is) {
  on_every_isa([] {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      for (const std::size_t n : {1u, 15u, 16u, 40u, 1025u, 3000u}) {
        Numbers x = gradient_like(n, 4);
        EXPECT_TRUE(kernels::all_finite(Tensor(x, dtype).view())) << n;
        for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
          for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
            Numbers broken = x;
            broken[at] = bad;
            EXPECT_FALSE(kernels::all_finite(Tensor(broken, dtype).view())) << n << ", " << at;
          }
        }
      }
    }
    EXPECT_TRUE(kernels::all_finite({nullptr, 0, Dtype::f16}));
  });
}

TEST(Arithmetic, a_step_with_momentum_is_that_of_sgd) {
  for (const bool nesterov : {false, true}) {
    on_every_isa_and_length([&](const Numbers& gradients, Numbers numbers, Numbers speeds) {
      Numbers sums = numbers, moving = speeds;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const float speed = 0.9f * moving[i] + gradients[i];
        sums[i] += nesterov ? gradients[i] + 0.9f * speed : speed;
        moving[i] = finite_or_zero(speed);
      }
      kernels::add_step(gradients, {0.9f, nesterov}, numbers, speeds);
      EXPECT_TRUE(same_bits(speeds, moving));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const bool both_broken = !std::isfinite(numbers[i]) && !std::isfinite(sums[i]);
        EXPECT_TRUE(numbers[i] == sums[i] || both_broken) << i;
      }
    });
  }
}

TEST(Arithmetic, what_was_not_sent_is_kept_unless_it_is_not_finite) {
  on_every_isa_and_length([](const Numbers& wanted, const Numbers& sent, Numbers kept) {
    Numbers rest(wanted.size()), more = kept;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      rest[i] = finite_or_zero((wanted[i] - sent[i]) * 3);
      more[i] = finite_or_zero(more[i] + (wanted[i] - sent[i]) * 3);
    }
    kernels::add_rest(wanted, sent, 3, kept);
    EXPECT_TRUE(same_bits(kept, more));
    kernels::keep_rest(wanted, sent, 3, kept);
    EXPECT_TRUE(same_bits(kept, rest));
    Numbers in_place = wanted;
    kernels::keep_rest(in_place, sent, 3, in_place);
    EXPECT_TRUE(same_bits(in_place, rest));
  });
}

}  // namespace
}  // namespace gradwire::test
