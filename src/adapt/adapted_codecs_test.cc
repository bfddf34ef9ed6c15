#include "adapt/adapted_codecs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradwire::adapt {
namespace {

constexpr std::uint64_t kElements = 100'000;
const std::vector<AdaptedLayer> kLayers{{"first", kElements}, {"second", kElements}};

Sight sight(double rms, double consensus = 0.1) {
  const double energy = rms * rms * static_cast<double>(kElements);
  return {.energy = energy, .mean_energy = energy * (1 + consensus) / 2};
}

AdaptedCodecs settled(double consensus = 0.1) {
  AdaptedCodecs codecs(kLayers, 2);
  for (int i = 0; i < 300; ++i) codecs.see({sight(1, consensus), sight(1, consensus)}, 2.0);
  return codecs;
}

std::string codec_of(const AdaptedCodecs& codecs, std::size_t layer,
                     const char* codec = "grid:step=0.5") {
  const std::string spec = codecs.adapted(layer, Codec::parse(codec)).spec();
  return spec.substr(0, spec.find(','));
}

/// Steps until the layer travels as before.
int steps_of_care(AdaptedCodecs& codecs, const std::string& usual) {
  int steps = 0;
  while (codec_of(codecs, 0) != usual && steps < 100) {
    codecs.see({sight(1), sight(1)}, 2.0);
    ++steps;
  }
  return steps;
}

TEST(AdaptedCodecs, changes_the_steps_of_grid_alone) {
  const AdaptedCodecs codecs = settled();
  EXPECT_EQ(codec_of(codecs, 0), "grid:step=0.31");
  const Codec nearest = Codec::parse("grid:step=0.5,locality=0,rounding=nearest");
  EXPECT_EQ(codecs.adapted(0, nearest).spec(), "grid:step=0.31,locality=0,rounding=nearest");
  EXPECT_EQ(codec_of(codecs, 0, "uniform:bits=4"), "uniform:bits=4");
  EXPECT_EQ(codec_of(codecs, 0, "none"), "none");
  EXPECT_EQ(codecs.reason(0), "adapted: consensus 0.10");
  EXPECT_EQ(AdaptedCodecs(kLayers, 2).reason(0), "adapted: nothing is known yet");
}

TEST(Guard, has_a_layer_travel_exactly_until_it_is_finite) {
  for (const double odd :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    AdaptedCodecs codecs = settled();
    const std::string usual = codec_of(codecs, 0);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(codecs.see({Sight{.energy = odd, .mean_energy = odd}, sight(1)}, 2.0), i == 0);
      EXPECT_EQ(codec_of(codecs, 0), "none");
      EXPECT_EQ(codec_of(codecs, 0, "uniform"), "none");
      EXPECT_EQ(codec_of(codecs, 1), usual);
    }
    EXPECT_TRUE(codecs.see({sight(1), sight(1)}, 2.0));
    EXPECT_EQ(codec_of(codecs, 0), usual);
    EXPECT_EQ(codecs.take_events(), (std::vector<std::string>{"first: not finite, travels exactly",
                                                              "first: finite again"}));
    EXPECT_TRUE(codecs.take_events().empty());
  }
}

TEST(Guard, has_a_layer_travel_finer_when_its_gradients_leap) {
  AdaptedCodecs codecs = settled();
  const std::string usual = codec_of(codecs, 0);
  EXPECT_TRUE(codecs.see({sight(1000), sight(1)}, 2.0));
  EXPECT_EQ(codec_of(codecs, 0), "grid:step=0.0775");
  EXPECT_EQ(codec_of(codecs, 0, "uniform:bits=4"), "none");
  EXPECT_EQ(codec_of(codecs, 1), usual);
  EXPECT_EQ(codecs.take_events(),
            (std::vector<std::string>{
                "first: gradients 1000 times as large as usual, travels finer for 8 steps"}));
  EXPECT_EQ(codecs.reason(0), "guarded: finer, until numbers are as usual");
  EXPECT_EQ(steps_of_care(codecs, usual), 8);
}

TEST(Guard, takes_larger_gradients_for_usual_after_a_while) {
  AdaptedCodecs codecs = settled();
  codecs.see({sight(1000), sight(1)}, 2.0);
  codecs.take_events();
  for (int i = 0; i < 50; ++i) codecs.see({sight(1000), sight(1)}, 2.0);
  EXPECT_TRUE(codecs.take_events().empty());
}

TEST(Guard, has_a_layer_travel_finer_when_ranks_agree_no_longer) {
  AdaptedCodecs codecs = settled(0.6);
  const std::string usual = codec_of(codecs, 0);
  EXPECT_TRUE(codecs.see({sight(1, 0), sight(1, 0.6)}, 2.0));
  EXPECT_NE(codec_of(codecs, 0), usual);
  EXPECT_EQ(codec_of(codecs, 1), usual);
  EXPECT_EQ(
      codecs.take_events(),
      (std::vector<std::string>{"first: ranks agree no longer (consensus 0.00 of 0.60), travels "
                                "finer for 8 steps"}));
}

TEST(Guard, has_a_layer_travel_finer_when_codecs_lose_much) {
  AdaptedCodecs codecs = settled();
  Sight lossy = sight(1);
  lossy.sampled_energy = 1;
  lossy.sampled_error = 0.3;
  codecs.see({lossy, sight(1)}, 2.0);
  EXPECT_TRUE(codecs.take_events().empty());  // it is usual only now
  EXPECT_TRUE(codecs.see({lossy, sight(1)}, 2.0));
  EXPECT_EQ(codecs.take_events(),
            (std::vector<std::string>{"first: codecs lost 30 % of its energy, "
                                      "travels finer for 8 steps"}));
}

TEST(Guard, has_all_layers_travel_exactly_when_the_loss_leaps) {
  for (const double loss : {7.0, std::numeric_limits<double>::quiet_NaN()}) {
    AdaptedCodecs codecs = settled();
    const std::string usual = codec_of(codecs, 0);
    EXPECT_TRUE(codecs.see({sight(1), sight(1)}, loss));
    EXPECT_EQ(codec_of(codecs, 0), "none");
    EXPECT_EQ(codec_of(codecs, 1), "none");
    EXPECT_EQ(codecs.take_events().size(), 1);
    EXPECT_EQ(steps_of_care(codecs, usual), 8);
  }
}

TEST(Guard, does_not_take_losses_below_zero_for_leaps) {
  AdaptedCodecs codecs(kLayers, 2);
  for (int i = 0; i < 100; ++i) codecs.see({sight(1), sight(1)}, i < 50 ? -2.0 : 0.1);
  EXPECT_TRUE(codecs.take_events().empty());
}

TEST(Guard, waits_for_a_layer_to_be_seen_before_it_is_finite_again) {
  AdaptedCodecs codecs = settled();
  codecs.see({Sight{.energy = NAN, .mean_energy = NAN}, sight(1)}, 2.0);
  codecs.see({Sight{}, sight(1)}, 2.0);
  EXPECT_EQ(codec_of(codecs, 0), "none");
}

TEST(Guard, knows_no_usual_loss_before_some_steps) {
  AdaptedCodecs codecs(kLayers, 2);
  for (const double loss : {0.1, 9.0, 2.0, 30.0}) {
    codecs.see({sight(1), sight(1)}, loss);
    EXPECT_TRUE(codecs.take_events().empty());
  }
}

TEST(AdaptedCodecs, goes_on_as_it_was_saved) {
  AdaptedCodecs codecs = settled();
  codecs.see({sight(1000), sight(1)}, 2.0);
  AdaptedCodecs loaded(kLayers, 2);
  ASSERT_TRUE(loaded.load(codecs.save()));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(codec_of(loaded, 0), codec_of(codecs, 0));
    const std::vector step{sight(1 + 0.1 * i), sight(1, 0.5)};
    EXPECT_EQ(loaded.see(step, 2.0), codecs.see(step, 2.0));
  }
}

TEST(AdaptedCodecs, refuses_what_was_saved_of_others) {
  const std::vector<std::byte> saved = settled().save();
  EXPECT_FALSE(AdaptedCodecs(kLayers, 3).load(saved));
  EXPECT_FALSE(AdaptedCodecs(std::span(kLayers).first(1), 2).load(saved));
  EXPECT_FALSE(settled().load(std::span(saved).first(saved.size() - 1)));
  EXPECT_FALSE(settled().load({}));
  for (std::size_t i = 0; i < saved.size(); i += 7) {  // whatever it is, it does no harm
    std::vector<std::byte> damaged = saved;
    std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(i),
                std::min<std::size_t>(8, saved.size() - i), std::byte{0xff});
    AdaptedCodecs codecs = settled();
    codecs.load(damaged);
    for (int step = 0; step < 100; ++step) codecs.see({sight(1), sight(1)}, 2.0);
    EXPECT_NE(codec_of(codecs, 1), "none") << i;
  }
  std::vector<std::byte> longer = saved;
  longer.push_back({});
  EXPECT_FALSE(settled().load(longer));
}

}  // namespace
}  // namespace gradwire::adapt
