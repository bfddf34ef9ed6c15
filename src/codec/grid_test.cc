#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

// ---------------------------------------------------------------------------------------------
// nmse=

using Distribution = std::vector<float> (*)(std::size_t, std::uint64_t, float);

struct NmseCase {
  const char* name;
  Distribution distribution;
};

class GridNmse : public testing::TestWithParam<NmseCase> {};

TEST_P(GridNmse, measured_error_is_the_requested_one) {
  for (const float scale : {1e-12f, 1.0f, 1e12f}) {
    const std::vector<float> x = GetParam().distribution(200'000, 31, scale);
    for (const std::string target : {"0.001", "0.005", "0.02", "0.1"}) {
      for (const std::string rounding : {"stochastic", "nearest", "dither"}) {
        for (const std::string locality : {"0", "0.5", "1"}) {
          const std::string spec =
              "grid:nmse=" + target + ",locality=" + locality + ",rounding=" + rounding;
          const double measured = nmse(x, pass(spec, x));
          EXPECT_NEAR(measured / std::stod(target), 1, 0.05)
              << spec << " of numbers about " << scale;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GridNmse,
                         testing::Values(NmseCase{"gaussian", gaussian},
                                         NmseCase{"laplace", laplace},
                                         NmseCase{"student_t3", student_t3},
                                         NmseCase{"sparse", sparse}),
                         [](const auto& tested) { return std::string(tested.param.name); });

// ---------------------------------------------------------------------------------------------
// Zeros, outliers, sizes

TEST(Grid, zeros_among_others_stay_exactly_zero) {
  const std::vector<float> x = sparse(100'000, 3);
  for (const char* spec :
       {"grid:step=0.5", "grid:step=4,locality=0", "grid:step=0.5,rounding=nearest"}) {
    ASSERT_TRUE(Codec::parse(spec).traits().keeps_zeros);
    const std::vector<float> decoded = pass(spec, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(x[i] != 0 || decoded[i] == 0) << spec << ", element " << i;
    }
  }
}

TEST(Grid, dither_does_not_claim_to_keep_zeros) {
  EXPECT_FALSE(Codec::parse("grid:rounding=dither").traits().keeps_zeros);
}

TEST(Grid, zeros_cost_next_to_nothing) {
  const Tensor x(std::vector<float>(1'000'000), Dtype::f32);
  EXPECT_LE(encode(Codec::parse("grid"), x).size(), 32u);
}

TEST(Grid, larger_steps_take_fewer_bytes) {
  const Tensor x(gaussian(50'000), Dtype::f32);
  std::size_t before = ~std::size_t{0};
  for (const char* step : {"0.001", "0.01", "0.1", "0.5", "2", "16"}) {
    const std::size_t bytes = encode(Codec::parse(std::string("grid:step=") + step), x).size();
    EXPECT_LT(bytes, before) << step;
    before = bytes;
  }
}

/// The class of a Gaussian at one half step per rms: within 4 % of the entropy of its integers.
TEST(Grid, gaussian_is_coded_near_its_entropy) {
  constexpr std::size_t kCount = 1 << 20;
  const std::vector<float> x = gaussian(kCount, 8);
  const Codec codec = Codec::parse("grid:step=0.5,locality=0,rounding=nearest");
  const double bits =
      8.0 * static_cast<double>(encode(codec, Tensor(x, Dtype::f32)).size()) / kCount;
  double entropy = 0;
  for (int q = -20; q <= 20; ++q) {
    const double p =
        (std::erf((q + 0.5) * 0.5 / std::sqrt(2)) - std::erf((q - 0.5) * 0.5 / std::sqrt(2))) / 2;
    if (p > 0) entropy -= p * std::log2(p);
  }
  EXPECT_GT(bits, entropy) << "no code is shorter";
  EXPECT_LT(bits, entropy * 1.04);
}

/// Outliers take escapes of one byte, of three, low bits, or the whole block as it is.
TEST(Grid, outliers_of_any_size_keep_their_error_bound) {
  for (int exponent = 0; exponent <= 60; ++exponent) {
    std::vector<float> x = gaussian(4096, 12);
    for (std::size_t i = 50; i < x.size(); i += 700)
      x[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, exponent);
    const Codec codec = Codec::parse("grid:step=0.5,locality=0,rounding=nearest,rms=1");
    const std::vector<float> decoded = pass(codec, Tensor(x, Dtype::f32));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_LE(std::fabs(decoded[i] - x[i]), 0.25 + std::fabs(x[i]) * 1e-6)
          << "2^" << exponent << " " << i;
    }
  }
}

// ---------------------------------------------------------------------------------------------
// fit

TEST(GridFit, slices_of_a_fitted_layer_decode_like_the_whole) {
  const std::vector<float> x = gradient_like(40'000, 17);
  for (const char* spec :
       {"grid:step=0.5", "grid:nmse=0.01,rounding=dither", "grid:step=0.1,locality=0"}) {
    const Codec codec = Codec::parse(spec).fit(Tensor(x, Dtype::f32).view());
    const std::vector<float> whole = pass(codec, Tensor(x, Dtype::f32));
    std::vector<float> joined;
    for (std::size_t first = 0; first < x.size(); first += 12'800) {
      const auto part =
          std::span(x).subspan(first, std::min<std::size_t>(12'800, x.size() - first));
      for (const float value : pass(codec, Tensor(part, Dtype::f32), {.first_element = first})) {
        joined.push_back(value);
      }
    }
    EXPECT_EQ(joined, whole) << spec;
  }
}

TEST(GridFit, a_layer_in_several_places_is_fitted_like_the_whole) {
  constexpr std::size_t kChunk = 65'536;  // sums are formed by chunks of this many
  const std::vector<float> x = gradient_like(3 * kChunk, 17);
  const ConstTensorView whole{x.data(), x.size(), Dtype::f32};
  const ConstTensorView places[] = {whole.slice(0, kChunk), {}, whole.slice(kChunk, 2 * kChunk)};
  for (const char* spec : {"grid:step=0.5", "grid:nmse=0.01,rounding=nearest"}) {
    const Codec codec = Codec::parse(spec);
    EXPECT_EQ(codec.fit(places), codec.fit(whole)) << spec;
    EXPECT_NE(codec.fit(places), codec.fit(places[0])) << spec;
  }
}

TEST(GridFit, fitting_what_is_fitted_changes_nothing) {
  const Tensor x(gaussian(10'000), Dtype::f32);
  const Tensor other(gaussian(10'000, 2, 100), Dtype::f32);
  for (const char* spec : {"grid:step=0.5", "grid:nmse=0.01"}) {
    const Codec fitted = Codec::parse(spec).fit(x.view());
    EXPECT_NE(fitted, Codec::parse(spec));
    EXPECT_EQ(fitted.fit(other.view()), fitted);
    EXPECT_EQ(Codec::parse(fitted.spec()), fitted) << fitted.spec();
    EXPECT_TRUE(encode(fitted, x) == encode(Codec::parse(spec), x)) << "encoding fits by itself";
  }
}

TEST(GridFit, codecs_without_statistics_return_themselves) {
  const Tensor x(gaussian(1000), Dtype::f32);
  for (const char* spec : {"none", "uniform", "exponential", "sign"}) {
    EXPECT_EQ(Codec::parse(spec).fit(x.view()), Codec::parse(spec));
  }
}

}  // namespace
}  // namespace gradwire::test
