// No number comes back further from where it was than its codec's documentation says.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "codec/codec_test_bounds.h"
#include "codec/codec_test_data.h"

namespace gradwire::test {
namespace {

bool has_levels(const std::string& spec) {
  return spec.starts_with("uniform") || spec.starts_with("exponential") ||
         spec.starts_with("grid:step");
}

std::vector<std::string> specs_with_levels() {
  std::vector<std::string> specs = every_spec();
  std::erase_if(specs, [](const std::string& spec) { return !has_levels(spec); });
  return specs;
}

/// The largest error of all numbers, relative to what is allowed there.
double worst(const Codec& codec, std::span<const float> x, std::span<const float> decoded) {
  const std::vector<Bound> allowed = bounds(codec, x);
  const double share = rounding_share(codec);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(static_cast<double>(decoded[i]) - x[i]);
    if (std::isnan(error)) return INFINITY;
    worst = std::fmax(worst, error / (share * allowed[i].distance + allowed[i].slack));
  }
  return worst;
}

class ErrorBounds : public testing::TestWithParam<Dtype> {};

TEST_P(ErrorBounds, every_element_is_within_them) {
  const Tensor x(gradient_like(20'000, 5), GetParam());
  for (const std::string& spec : specs_with_levels()) {
    const Codec codec = Codec::parse(spec);
    const std::vector<float> decoded = pass(codec, x, {.random = {.seed = 9}});
    EXPECT_LE(worst(codec, x.floats(), decoded), 1) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(, ErrorBounds, testing::ValuesIn(kDtypes),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

/// Bounds that are never approached would not notice a codec that wastes its levels.
TEST(ErrorBoundsAreTight, some_element_comes_close) {
  const std::vector<float> x = gaussian(20'000, 6);
  for (const std::string& spec : specs_with_levels()) {
    if (spec.find("bucket=1,") != std::string::npos) continue;  // nearly exact
    const Codec codec = Codec::parse(spec);
    EXPECT_GE(worst(codec, x, pass(spec, x)), 0.8) << spec;
  }
}

}  // namespace
}  // namespace gradwire::test
