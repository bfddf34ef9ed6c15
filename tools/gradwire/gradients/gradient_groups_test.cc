#include "gradients/gradient_groups.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradwire::cli {
namespace {

std::vector<GradientGroup> groups_of(const std::vector<std::string>& names) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, {}});
  return group_gradients(tensors);
}

std::vector<std::string> group_names(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const GradientGroup& group : groups_of(names)) found.push_back(group.name);
  return found;
}

using Names = std::vector<std::string>;

TEST(GradientGroups, steps_of_a_model_stand_together_in_numeric_order) {
  EXPECT_EQ((Names{"cnn/3", "cnn/20", "cnn/100", "mlp/1"}),
            group_names({"cnn/100/w", "mlp/1/w", "cnn/20/w", "cnn/3/w", "cnn/3/b"}));
}

TEST(GradientGroups, model_with_embeddings_has_groups_without_them) {
  const auto groups = groups_of({"lm/20/embed.weight", "lm/20/head.weight", "lm/20/position.weight",
                                 "lm/20/blocks.0.qkv", "lm/20/embedding_norm", "cnn/20/conv"});
  ASSERT_EQ(3U, groups.size());
  EXPECT_EQ("cnn/20", groups[0].name);
  EXPECT_EQ("lm/20", groups[1].name);
  EXPECT_EQ(5U, groups[1].layers.size());
  EXPECT_EQ("lm-without-embeddings/20", groups[2].name);
  EXPECT_EQ(2U, groups[2].layers.size());
}

TEST(GradientGroups, early_steps_count_towards_no_total) {
  const auto groups = groups_of({"cnn/19/w", "cnn/20/w", "cnn/21/w"});
  ASSERT_EQ(3U, groups.size());
  EXPECT_EQ("", groups[0].total);
  EXPECT_EQ("cnn/steps>=20", groups[1].total);
  EXPECT_EQ("cnn/steps>=20", groups[2].total);
}

TEST(GradientGroups, other_names_are_grouped_by_prefix_or_all) {
  EXPECT_EQ((Names{"a/b", "all", "cnn/x"}),
            group_names({"a/b/w", "plain", "other", "cnn/x/w", "a/b/v"}));
}

TEST(GradientGroups, step_that_is_no_number_is_part_of_a_prefix) {
  EXPECT_EQ((Names{"m/-1", "m/1x", "m/99999999999999999999"}),
            group_names({"m/-1/w", "m/1x/w", "m/99999999999999999999/w"}));
}

TEST(GradientGroups, layers_draw_from_different_streams_and_the_same_at_every_step) {
  const auto groups = groups_of({"m/1/w", "m/1/v", "m/2/w"});
  ASSERT_EQ(2U, groups.size());
  EXPECT_NE(groups[0].layers[0].key, groups[0].layers[1].key);
  EXPECT_EQ(groups[0].layers[0].key, groups[1].layers[0].key);
}

}  // namespace
}  // namespace gradwire::cli
