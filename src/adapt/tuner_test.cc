#include "adapt/tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradwire::adapt {
namespace {

constexpr std::uint64_t kElements = 1'000'000;
constexpr std::uint64_t kOne[] = {kElements};
constexpr std::uint64_t kTwo[] = {kElements, kElements};
constexpr std::uint64_t kUnlike[] = {kElements, 5000};

/// Of a layer whose numbers have this rms, with this consensus, on two ranks.
Sight sight(double rms, double consensus, std::uint64_t elements = kElements) {
  const double energy = rms * rms * static_cast<double>(elements);
  return {.energy = energy, .mean_energy = energy * (1 + consensus) / 2};
}

void see(Tuner& tuner, std::vector<Sight> step, int times = 100) {
  for (int i = 0; i < times; ++i) tuner.see(step);
}

TEST(Consensus, of_equal_gradients_is_one_and_of_noise_none) {
  EXPECT_DOUBLE_EQ(consensus({.energy = 4, .mean_energy = 4}, 2), 1);
  EXPECT_DOUBLE_EQ(consensus({.energy = 4, .mean_energy = 2}, 2), 0);
  EXPECT_DOUBLE_EQ(consensus({.energy = 4, .mean_energy = 1}, 4), 0);
  EXPECT_DOUBLE_EQ(consensus({.energy = 4, .mean_energy = 1.75}, 4), 0.25);
  EXPECT_EQ(consensus({}, 2), 0);
  EXPECT_EQ(consensus({.energy = 1, .mean_energy = 1}, 1), 1);
}

TEST(Consensus, is_cleared_of_what_codecs_add) {
  // Two ranks: each half of the mean has one rank's error, a quarter of its energy.
  const double nmse = 0.04, energy = 1, mean = 0.5 * energy + nmse * energy / 4;
  EXPECT_NEAR(
      consensus(
          {.energy = energy, .mean_energy = mean, .sampled_energy = 10, .sampled_error = 10 * nmse},
          2),
      0, 1e-12);
}

TEST(Tuner, begins_fine_and_becomes_coarser_as_the_signal_fades) {
  Tuner tuner(kOne, 2);
  const double first = tuner.step_of(0);
  see(tuner, {sight(1, 0.5)});
  const double strong = tuner.step_of(0);
  see(tuner, {sight(1, 0.1)}, 300);
  const double usual = tuner.step_of(0);
  see(tuner, {sight(1, 0)}, 300);
  EXPECT_LT(first, strong);
  EXPECT_LT(strong, usual);
  EXPECT_LT(usual, tuner.step_of(0));
}

TEST(Tuner, gives_layers_points_at_the_same_distance) {
  Tuner tuner(std::vector<std::uint64_t>{kElements, 1000}, 2);
  see(tuner, {sight(1e-3, 0.1), sight(1e-2, 0.1, 1000)});
  const double wide = tuner.step_of(0), narrow = tuner.step_of(1);
  EXPECT_NEAR(wide * 1e-3 / (narrow * 1e-2), 1, 0.35);  // steps are some values only
}

TEST(Tuner, does_not_depend_on_the_scale_of_gradients) {
  for (const double scale : {1e-15, 1.0, 1e15}) {
    Tuner tuner(kTwo, 4);
    see(tuner, {sight(scale, 0.4), sight(2 * scale, 0.2)});
    EXPECT_EQ(tuner.step_of(0), 0.19) << scale;
    EXPECT_EQ(tuner.step_of(1), 0.11) << scale;
  }
}

TEST(Tuner, changes_nothing_for_little) {
  Tuner tuner(kOne, 2);
  see(tuner, {sight(1, 0.1)}, 300);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(tuner.see(std::vector{sight(i % 2 == 0 ? 1 : 1.1, i % 2 == 0 ? 0.09 : 0.11)}));
  }
}

TEST(Tuner, learns_nothing_from_what_is_missing_or_not_finite) {
  Tuner tuner(kTwo, 2);
  see(tuner, {sight(1, 0.1), sight(1, 0.1)}, 300);
  const double before = tuner.step_of(1);
  const double infinite = std::numeric_limits<double>::infinity();
  for (const Sight& nothing : {Sight{}, Sight{.energy = infinite, .mean_energy = 1},
                               Sight{.energy = std::nan(""), .mean_energy = 1},
                               Sight{.energy = 1, .mean_energy = infinite}}) {
    see(tuner, {sight(1, 0.1), nothing});
    EXPECT_EQ(tuner.step_of(1), before);
  }
}

TEST(Tuner, takes_a_gradient_of_zeros_or_the_smallest_numbers) {
  Tuner tuner(kTwo, 2);
  see(tuner, {Sight{.energy = 1e-300, .mean_energy = 1e-300}, Sight{}});
  EXPECT_GE(tuner.step_of(0), Tuner::steps().front());
  EXPECT_LE(tuner.step_of(0), Tuner::steps().back());
}

TEST(Tuner, goes_on_as_it_was_saved) {
  Tuner tuner(kUnlike, 2);
  see(tuner, {sight(1, 0.3), sight(0.1, 0.2, 5000)}, 20);
  ByteWriter writer;
  tuner.save(writer);
  Tuner loaded(kUnlike, 2);
  ByteReader reader(writer.bytes());
  ASSERT_TRUE(loaded.load(reader));
  for (int i = 0; i < 200; ++i) {
    const std::vector step{sight(1, 0.3 - 0.001 * i), sight(0.1 + 0.01 * i, 0.2, 5000)};
    EXPECT_EQ(loaded.see(step), tuner.see(step));
    EXPECT_EQ(loaded.step_of(0), tuner.step_of(0));
    EXPECT_EQ(loaded.step_of(1), tuner.step_of(1));
  }
}

TEST(Tuner, refuses_what_was_saved_of_other_layers) {
  ByteWriter writer;
  Tuner(kOne, 2).save(writer);
  Tuner other(std::vector{kElements + 1}, 2);
  ByteReader reader(writer.bytes());
  EXPECT_FALSE(other.load(reader));
  ByteReader cut(writer.bytes().first(writer.bytes().size() - 1));
  EXPECT_FALSE(Tuner(kOne, 2).load(cut));
}

}  // namespace
}  // namespace gradwire::adapt
