// The same bytes for any chunking: a slice draws the random numbers that the whole tensor would
// draw.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random_stream.h"
#include "codec/codec_test_data.h"
#include "codec/notes.h"

namespace gradwire::test {
namespace {

/// Decodes slices of `length` elements, each encoded for itself, into one vector.
std::vector<float> pass_sliced(const Codec& codec, std::span<const float> x, std::size_t length,
                               const EncodeOptions& options) {
  std::vector<float> joined;
  for (std::size_t first = 0; first < x.size(); first += length) {
    const Tensor slice(x.subspan(first, std::min(length, x.size() - first)), Dtype::f32);
    EncodeOptions own = options;
    own.first_element += first;
    const std::vector<float> decoded = pass(codec, slice, own);
    joined.insert(joined.end(), decoded.begin(), decoded.end());
  }
  return joined;
}

class Slices : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Slices, decode_to_what_the_whole_decodes_to) {
  const EncodeOptions options{.random = {.seed = 3}, .first_element = GetParam()};
  const std::vector<float> x = gaussian(20'000, 14);
  for (const char* spec :
       {"uniform:bits=4,bucket=128", "uniform:bits=1,bucket=32,meta=fp32",
        "uniform:bits=3,bucket=64", "exponential:bits=4,bucket=128", "exponential:bits=3,bucket=1",
        "grid:step=0.5,rms=1", "grid:step=0.5,locality=0,rms=1,rounding=dither", "topk:threshold=1",
        "randomk:density=0.1,scale=inverse"}) {
    const Codec codec = Codec::parse(spec);
    on_every_isa([&] {
      const std::vector<float> whole = pass(codec, Tensor(x, Dtype::f32), options);
      for (const std::size_t length : {128u, 384u, 2048u, 5120u}) {
        EXPECT_EQ(pass_sliced(codec, x, length, options), whole)
            << spec << " in slices of " << length;
      }
    });
  }
}

TEST(Notes, of_a_layer_change_no_byte) {
  std::vector<float> x = gaussian(150'000, 14);
  std::fill(x.begin() + 1000, x.begin() + 9000, 0.0f);
  x[20'000] = INFINITY;
  for (const char* spec : {"grid:step=0.5", "grid:step=0.5,rms=2", "grid:nmse=0.01,locality=0",
                           "uniform:bits=4,bucket=128"}) {
    const Tensor whole(x, Dtype::f32);
    std::vector<double> notes(note_count(Codec::parse(spec), x.size()));
    const Codec codec = fit(Codec::parse(spec), whole.view(), notes);
    EXPECT_EQ(codec, Codec::parse(spec).fit(whole.view()));
    for (const std::size_t first : {0, 128, 70'016}) {
      const Tensor slice(std::span<const float>(x).subspan(first), Dtype::f32);
      const EncodeOptions options{.random = {.seed = 3}, .first_element = first};
      std::vector<std::byte> noted(codec.max_encoded_bytes(slice.count()));
      noted.resize(gradwire::encode(codec, slice.view(), options, notes, noted).bytes);
      EXPECT_EQ(noted, encode(codec, slice, options)) << spec << ", " << first;
    }
  }
}

TEST(Notes, of_a_layer_add_up_to_its_energy) {
  std::vector<float> x = gaussian(150'001, 14);
  for (const float first : {1.0f, INFINITY}) {
    x[0] = first;
    const Tensor layer(x, Dtype::f32);
    std::vector<double> notes(note_count(Codec::parse("grid"), x.size()));
    fit(Codec::parse("grid"), layer.view(), notes);
    double energy = 0, noted = 0;
    for (const float number : x) energy += double{number} * number;
    for (const double note : notes) noted += note;
    EXPECT_EQ(std::isfinite(noted), std::isfinite(energy));
    if (std::isfinite(energy)) {
      EXPECT_NEAR(noted, energy, 1e-6 * energy);
    }
  }
}

TEST_P(Slices, packed_codes_join_to_the_codes_of_the_whole) {
  constexpr std::ptrdiff_t kCount = 10'240;
  const std::vector<float> x = gaussian(kCount, 15);
  const Codec codec = Codec::parse("uniform:bits=4,bucket=128");
  const auto codes = [&](std::ptrdiff_t first, std::ptrdiff_t count) {
    const Tensor slice(std::vector(x.begin() + first, x.begin() + first + count), Dtype::f32);
    const auto payload = encode(
        codec, slice,
        {.random = {.seed = 5}, .first_element = GetParam() + static_cast<std::uint64_t>(first)});
    return std::vector<std::byte>(payload.begin() + count / 128 * 4, payload.end());
  };
  std::vector<std::byte> joined;
  for (std::ptrdiff_t first = 0; first < kCount; first += 1280) {
    const std::vector<std::byte> part = codes(first, 1280);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(joined == codes(0, kCount));
}

/// One bit, levels 0 and 1: an element becomes 1 exactly when its random bits carry it over.
void expect_documented_bits(std::size_t bucket, std::uint64_t first_element) {
  const RandomKey key{.seed = 9, .step = 8, .tensor = 7, .rank = 6};
  const Codec codec = Codec::parse("uniform:bits=1,meta=fp32,bucket=" + std::to_string(bucket));
  std::vector<float> x(10'000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 40503 % 65536) / 65536;
  for (std::size_t i = 0; i + 1 < x.size(); i += bucket) {  // buckets reach from 0 to 1
    x[i] = 0;
    x[i + 1] = 1;
  }
  on_every_isa([&] {
    const std::vector<float> decoded =
        pass(codec, Tensor(x, Dtype::f32), {.random = key, .first_element = first_element});
    for (std::size_t i = 0; i + bucket <= x.size(); ++i) {
      const auto fixed = static_cast<unsigned>(x[i] * 65536) + random_bits(key, first_element + i);
      ASSERT_EQ(decoded[i], fixed >= 65536 ? 1 : 0) << "bucket " << bucket << ", element " << i;
    }
  });
}

TEST_P(Slices, codes_follow_the_documented_random_bits) {
  for (const std::size_t bucket : {7, 64, 100, 128, 1000})
    expect_documented_bits(bucket, GetParam());
}

TEST_P(Slices, codes_of_long_buckets_follow_the_documented_random_bits) {
  for (const std::size_t bucket : {256, 512, 2048}) expect_documented_bits(bucket, GetParam());
}

INSTANTIATE_TEST_SUITE_P(, Slices,
                         testing::Values(0, 128, kRegionElements - 128,
                                         kRegionElements - 2048 - 384, kRegionElements,
                                         3 * kRegionElements - 4096),
                         [](const auto& tested) { return "from_" + std::to_string(tested.param); });

TEST(Streams, keys_that_differ_in_one_field_give_other_bytes) {
  const Tensor x(gaussian(1000), Dtype::f32);
  const RandomKey key{.seed = 1, .step = 2, .tensor = 3, .rank = 4};
  const RandomKey others[] = {{2, 2, 3, 4}, {1, 3, 3, 4}, {1, 2, 4, 4}, {1, 2, 3, 5}};
  for (const char* spec : {"uniform", "exponential", "grid", "grid:rounding=dither"}) {
    const Codec codec = Codec::parse(spec);
    const auto bytes = encode(codec, x, {.random = key});
    EXPECT_TRUE(encode(codec, x, {.random = key}) == bytes) << spec;
    EXPECT_FALSE(encode(codec, x, {.random = key, .first_element = 128}) == bytes) << spec;
    for (const RandomKey& other : others)
      EXPECT_FALSE(encode(codec, x, {.random = other}) == bytes) << spec;
  }
}

TEST(Streams, nearest_depends_on_no_key) {
  const Tensor x(gaussian(1000), Dtype::f32);
  for (const char* spec : {"uniform:rounding=nearest", "exponential:rounding=nearest", "sign",
                           "grid:rounding=nearest"}) {
    const Codec codec = Codec::parse(spec);
    EXPECT_TRUE(encode(codec, x, {.random = {.seed = 1}}) ==
                encode(codec, x, {.random = {.seed = 2}}))
        << spec;
  }
}

}  // namespace
}  // namespace gradwire::test
