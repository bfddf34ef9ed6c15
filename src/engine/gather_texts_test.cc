#include "engine/gather_texts.h"

#include <gtest/gtest.h>

#include "engine/engine_test_ranks.h"

namespace gradwire {
namespace {

using engine::gather_texts;
using engine::give_up;
using engine::kLongestReason;

using Texts = std::vector<std::string>;

/// What a rank hears in the place of texts.
std::string reason_heard(Communicator& me) {
  try {
    gather_texts(me, "mine");
  } catch (const engine::GivenUp& error) {
    return error.what();
  }
  return "";
}

TEST(GatherTexts, gives_those_of_all_ranks_whatever_is_in_them) {
  const Texts texts{"", std::string("\0\xFF\n", 3), std::string(3000, 'x')};
  auto ranks = Communicator::in_process(3);
  on_all_ranks(ranks, [&](Communicator& me) {
    EXPECT_EQ(gather_texts(me, texts[me.rank()]), texts);
    EXPECT_EQ(gather_texts(me, ""), Texts(3));
  });
}

TEST(GatherTexts, a_rank_that_gives_up_waits_for_nobody_and_others_hear_why) {
  auto ranks = Communicator::in_process(3);
  give_up(*ranks[1], "rank 1 has no plan");
  on_all_ranks(ranks, [&](Communicator& me) {
    if (me.rank() != 1) {
      EXPECT_EQ(reason_heard(me), "rank 1 has no plan");
    }
    EXPECT_EQ(gather_texts(me, "again"), Texts(3, "again"));
  });
}

TEST(GatherTexts, all_ranks_may_give_up) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    give_up(me, "");
    EXPECT_EQ(gather_texts(me, "again"), Texts(2, "again"));
  });
}

TEST(GatherTexts, a_reason_is_not_cut_within_a_letter) {
  auto ranks = Communicator::in_process(2);
  on_all_ranks(ranks, [&](Communicator& me) {
    const std::string most(kLongestReason - 1, 'x');
    if (me.rank() == 0) return give_up(me, most + "é");
    EXPECT_EQ(reason_heard(me), most);
  });
}

TEST(GatherTexts, too_long_a_text_is_refused) {
  auto ranks = Communicator::in_process(1);
  EXPECT_THROW(gather_texts(*ranks[0], std::string(engine::kLongestText + 1, 'x')), Error);
}

}  // namespace
}  // namespace gradwire
