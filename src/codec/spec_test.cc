#include "codec/spec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "codec/codec_test_data.h"
#include "codec/registry.h"
#include "gradwire/error.h"

namespace gradwire::test {
namespace {

TEST(Spec, every_codec_parses_to_itself) {
  for (const std::string& text : every_spec()) {
    const Codec codec = Codec::parse(text);
    EXPECT_EQ(Codec::parse(codec.spec()), codec) << text;
    EXPECT_EQ(Codec::parse(codec.spec()).spec(), codec.spec()) << text;
    EXPECT_TRUE(codec.spec().starts_with(codec.name())) << text;
  }
}

TEST(Spec, settings_differ_when_texts_do) {
  std::vector<Codec> codecs;
  for (const std::string& text : every_spec()) {
    const Codec codec = Codec::parse(text);
    EXPECT_EQ(std::count(codecs.begin(), codecs.end(), codec), 0) << text;
    codecs.push_back(codec);
  }
}

TEST(Spec, defaults_are_written_out) {
  EXPECT_EQ(Codec::parse("none").spec(), "none");
  EXPECT_EQ(Codec::parse("uniform").spec(),
            "uniform:bits=4,bucket=128,rounding=stochastic,meta=bf16");
  EXPECT_EQ(Codec::parse("exponential").spec(),
            "exponential:bits=4,bucket=128,rounding=stochastic,meta=bf16");
  EXPECT_EQ(Codec::parse("sign").spec(), "sign:bucket=1024,meta=bf16");
  EXPECT_EQ(Codec::parse("grid").spec(), "grid:step=0.5,locality=0.5,rounding=stochastic");
}

TEST(Spec, keys_come_in_any_order) {
  EXPECT_EQ(Codec::parse("uniform:bucket=64,bits=2"), Codec::parse("uniform:bits=2,bucket=64"));
}

TEST(Spec, list_has_every_kind_with_all_keys) {
  const std::vector<std::string> specs = list_codecs();
  ASSERT_EQ(specs.size(), codec_kinds().size());
  for (const std::string& spec : specs) EXPECT_EQ(Codec::parse(spec).spec(), spec);
}

TEST(Spec, ids_and_names_are_unique) {
  for (const CodecKind* kind : codec_kinds()) {
    EXPECT_EQ(find_kind(kind->id), kind);
    EXPECT_EQ(&CodecAccess::kind(Codec::parse(kind->name)), kind);
  }
  EXPECT_EQ(find_kind(255), nullptr);
}

// ---------------------------------------------------------------------------------------------
// Errors

/// What parsing complains about; "" when it does not.
std::string complaint(const std::string& text) {
  try {
    Codec::parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_spec);
    return error.what();
  }
  return "";
}

struct BadSpec {
  const char* text;
  std::vector<const char*> named;  // what the message must say
};

TEST(Spec, wrong_texts_are_refused_with_what_exists) {
  const std::vector<const char*> all = {"none",        "fp16", "bf16", "uniform",
                                        "exponential", "sign", "grid"};
  const BadSpec cases[] = {
      {"", all},
      {"unifrom", all},
      {"Uniform", all},
      {" uniform", all},
      {"uniform :bits=4", all},
      {"uniform:bit=4", {"'bit'", "bits", "bucket", "rounding", "meta"}},
      {"none:bits=4", {"'bits'", "no keys"}},
      {"sign:bits=1", {"'bits'", "bucket", "meta"}},
      {"grid:bits=4", {"'bits'", "step", "nmse", "locality", "rounding"}},
      {"uniform:bits=0", {"bits=0", "1", "8"}},
      {"uniform:bits=9", {"bits=9", "1", "8"}},
      {"exponential:bits=1", {"bits=1", "2", "8"}},
      {"uniform:bits=-4", {"bits=-4", "whole number"}},
      {"uniform:bits=4.0", {"bits=4.0", "whole number"}},
      {"uniform:bits=four", {"bits=four", "whole number"}},
      {"uniform:bits= 4", {"whole number"}},
      {"uniform:bucket=0", {"bucket=0", "1"}},
      {"uniform:bucket=99999999999999999999", {"whole number"}},
      {"uniform:rounding=dither", {"rounding=dither", "stochastic", "nearest"}},
      {"uniform:meta=fp16", {"meta=fp16", "bf16", "fp32"}},
      {"grid:rounding=up", {"stochastic", "nearest", "dither"}},
      {"grid:step=0", {"step=0", "16"}},
      {"grid:step=17", {"step=17", "16"}},
      {"grid:step=nan", {"step=nan", "16"}},
      {"grid:step=inf", {"step=inf", "16"}},
      {"grid:step=0.5x", {"step=0.5x"}},
      {"grid:nmse=2", {"nmse=2", "1"}},
      {"grid:locality=-0.1", {"locality=-0.1", "0", "1"}},
      {"grid:locality=1.1", {"locality=1.1", "0", "1"}},
      {"grid:step=0.5,nmse=0.1", {"step", "nmse", "not both"}},
      {"uniform:bits=4,bits=4", {"'bits'", "twice"}},
      {"uniform:", {"key=value"}},
      {"uniform:bits", {"'bits'", "key=value"}},
      {"uniform:bits=", {"key=value"}},
      {"uniform:=4", {"key=value"}},
      {"uniform:bits=4,", {"key=value"}},
      {"uniform:,bits=4", {"key=value"}},
      {"uniform:bits=4;bucket=3", {"bits=4;bucket=3"}},
  };
  for (const BadSpec& bad : cases) {
    const std::string message = complaint(bad.text);
    EXPECT_NE(message, "") << "'" << bad.text << "' was taken";
    for (const char* part : bad.named) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not named: " << message;
    }
  }
}

RC_GTEST_PROP(Spec, any_text_parses_or_is_refused_in_words, (const std::string& text)) {
  const std::string message = complaint(text);
  RC_ASSERT(message != "" || !text.empty());
}

RC_GTEST_PROP(Spec, any_grid_numbers_round_trip, ()) {
  const auto number = [](double low, double high) {
    return low + (high - low) * *rc::gen::inRange(0, 1 << 30) / (1 << 30);
  };
  const std::string text = "grid:step=" + std::to_string(number(0.001, 16)) +
                           ",locality=" + std::to_string(number(0, 1)) +
                           ",rms=" + std::to_string(number(1e-5, 1e5));
  const Codec codec = Codec::parse(text);
  RC_ASSERT(Codec::parse(codec.spec()) == codec);
}

}  // namespace
}  // namespace gradwire::test
