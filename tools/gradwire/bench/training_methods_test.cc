#include "bench/training_methods.h"

#include <gtest/gtest.h>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

using List = std::vector<std::string>;

TEST(TrainingMethods, commas_separate_methods) {
  EXPECT_EQ(parse_training_methods("auto,adapt,gloo"), (List{"auto", "adapt", "gloo"}));
  EXPECT_EQ(parse_training_methods("gloo,fp16,bf16,powersgd,powersgd:rank=4,sign"),
            (List{"gloo", "fp16", "bf16", "powersgd", "powersgd:rank=4", "sign"}));
}

TEST(TrainingMethods, a_codec_keeps_its_settings) {
  EXPECT_EQ(parse_training_methods("uniform:bits=4,bucket=128,grid:step=0.5,gloo"),
            (List{"uniform:bits=4,bucket=128", "grid:step=0.5", "gloo"}));
  EXPECT_EQ(parse_training_methods("grid:step=1,rounding=nearest+feedback,none"),
            (List{"grid:step=1,rounding=nearest+feedback", "none"}));
}

TEST(TrainingMethods, residual_compression_has_settings_of_its_own) {
  EXPECT_EQ(parse_training_methods("gloo,residual,residual:density=0.01,warmup=20,grid"),
            (List{"gloo", "residual", "residual:density=0.01,warmup=20", "grid"}));
}

TEST(TrainingMethods, what_nobody_knows_is_refused) {
  for (const char* text : {"", "gloo,", "glo", "gloo,grid:steps=1", "powersgd:rank=0", "bits=4",
                           "gloo+feedback", "fp16:bits=3", "residual:bits=3"}) {
    EXPECT_THROW(parse_training_methods(text), Error) << text;
  }
}

}  // namespace
}  // namespace gradwire::cli
