#include "gradwire/way.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "gradwire/error.h"
#include "plan/plan_test_complaint.h"

namespace gradwire {
namespace {

using namespace std::string_view_literals;

TEST(Way, a_codec_alone_is_a_way) {
  const Way way = Way::parse("uniform:bits=2");
  EXPECT_EQ(way.codec, Codec::parse("uniform:bits=2"));
  EXPECT_FALSE(way.feedback);
  EXPECT_EQ(way.route, "");
  EXPECT_EQ(way.text(), way.codec.spec());
  EXPECT_EQ(Way{}, Way::parse("none"));
}

TEST(Way, parts_come_in_any_order) {
  const Way way = Way::parse("topk+route:sra+feedback:reuse=5,momentum=0.9");
  EXPECT_EQ(way, Way::parse("topk+feedback:momentum=0.9,reuse=5+route:sra"));
  EXPECT_EQ(way.feedback, (Feedback{.momentum = 0.9F, .reuse = 5}));
  EXPECT_EQ(way.route, "sra");
}

TEST(Way, defaults_of_feedback_are_not_written) {
  EXPECT_EQ(Way::parse("none+feedback").text(), "none+feedback");
  EXPECT_EQ(Way::parse("none+feedback:momentum=0,reuse=1,nesterov=0").text(), "none+feedback");
  EXPECT_EQ(Way::parse("none+feedback:reuse=2,masking=1,momentum=0.5,nesterov=1").text(),
            "none+feedback:momentum=0.5,nesterov=1,masking=1,reuse=2");
  EXPECT_NE(Way::parse("none+feedback"), Way::parse("none"));
}

TEST(Way, a_short_text_has_no_defaults_and_means_the_same) {
  EXPECT_EQ(Way::parse("none").short_text(), "none");
  EXPECT_EQ(Way::parse("sign:bucket=1024+feedback:reuse=1").short_text(), "sign+feedback");
  EXPECT_EQ(Way::parse("uniform:meta=fp32,bits=2+route:ring").short_text(),
            "uniform:bits=2,meta=fp32+route:ring");
  for (const std::string& codec : list_codecs()) {
    EXPECT_EQ(Way::parse(codec).short_text(), Codec::parse(codec).name());
  }
  for (const char* text : {"grid:nmse=0.02", "grid:step=1,rms=10", "topk:density=0.01+feedback"}) {
    EXPECT_EQ(Way::parse(Way::parse(text).short_text()), Way::parse(text));
  }
}

TEST(Way, a_plus_in_a_number_is_the_numbers) {
  const Way way = Way::parse("grid:step=0.5,rms=1e+01+feedback");
  EXPECT_EQ(way.codec, Codec::parse("grid:step=0.5,rms=10"));
  EXPECT_TRUE(way.feedback);
  EXPECT_EQ(Way::parse(Way::parse("grid:rms=1e+30+route:ring").text()).route, "ring");
}

/// What `call` complains about; "" when it does not.
template <class Call>
std::string complaint(Call call) {
  return complaint_of(call, ErrorCode::invalid_spec);
}

TEST(Way, wrong_texts_are_refused_with_what_is_right) {
  struct Bad {
    const char* text;
    std::vector<const char*> named;
  };
  const Bad cases[] = {
      {"", {"none", "uniform"}},
      {"+feedback", {"no codec before the + of '+feedback'"}},
      {"unifrom+feedback", {"unifrom", "uniform"}},
      {"sign+", {"''", "sign+feedback"}},
      {"sign+feedbak", {"'feedbak'", "sign+feedback", "grid+route:sra"}},
      {"sign+feedback+feedback", {"'feedback'", "twice"}},
      {"sign+route:sra+route:ring", {"'route'", "twice"}},
      {"sign+route", {"no algorithm ''", "sra", "ring", "hierarchical"}},
      {"sign+route:auto", {"'auto'", "sra"}},
      {"sign+route:encode-gather", {"sign+route:encode-gather", "must be broadcast, decode"}},
      {"sign+feedback:momentun=1", {"'momentun'", "momentum", "reuse"}},
      {"sign+feedback:momentum=1", {"momentum=1", "from 0 to 0.99999994"}},
      {"sign+feedback:momentum=-0.1", {"momentum=-0.1"}},
      {"sign+feedback:momentum=nan", {"momentum=nan"}},
      {"sign+feedback:nesterov=1", {"nesterov", "need momentum"}},
      {"sign+feedback:masking=1", {"masking", "need momentum"}},
      {"sign+feedback:nesterov=yes", {"nesterov=yes", "0, 1"}},
      {"sign+feedback:reuse=0", {"reuse=0", "from 1"}},
      {"sign+feedback:", {"key=value"}},
      {"sign + feedback", {"the codec of 'sign + feedback'", "'sign '"}},
  };
  for (const Bad& bad : cases) {
    const std::string message = complaint([&] { Way::parse(bad.text); });
    EXPECT_NE(message, "") << "'" << bad.text << "' was taken";
    for (const char* part : bad.named) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not named: " << message;
    }
  }
}

TEST(Way, a_nul_byte_is_refused_in_words) {
  for (const std::string_view text : {"sign\0"sv, "sign+feedback\0"sv, "sign+route:ring\0"sv}) {
    EXPECT_EQ(complaint([&] { Way::parse(text); }), "a way has a NUL byte: leave it out");
  }
}

TEST(Way, values_that_no_text_gives_are_refused) {
  const auto with = [](Feedback feedback) {
    return complaint([&] { Way{.feedback = feedback}.check(); });
  };
  EXPECT_EQ(with({}), "");
  EXPECT_NE(with({.momentum = 1}).find("0 to below 1"), std::string::npos);
  EXPECT_NE(with({.nesterov = true}).find("momentum"), std::string::npos);
  EXPECT_NE(with({.masking = true}).find("momentum"), std::string::npos);
  EXPECT_NE(with({.reuse = 0}).find("1 or more"), std::string::npos);
  EXPECT_NE(complaint([] { Way{.route = "auto"}.check(); }).find("take one of sra"),
            std::string::npos);
}

RC_GTEST_PROP(Way, any_way_round_trips, ()) {
  Way way;
  way.codec = Codec::parse(*rc::gen::elementOf(list_codecs()));
  if (*rc::gen::arbitrary<bool>()) {
    way.feedback =
        Feedback{.momentum = static_cast<float>(*rc::gen::inRange(0, 1 << 24)) / (1 << 24)};
    way.feedback->nesterov = way.feedback->momentum > 0 && *rc::gen::arbitrary<bool>();
    way.feedback->masking = way.feedback->momentum > 0 && *rc::gen::arbitrary<bool>();
    way.feedback->reuse = *rc::gen::inRange(1u, 1000u);
  }
  if (*rc::gen::arbitrary<bool>()) way.route = (*rc::gen::elementOf(algorithms())).name;
  way.check();
  RC_ASSERT(Way::parse(way.text()) == way);
}

RC_GTEST_PROP(Way, any_text_parses_or_is_refused_in_words, (const std::string& text)) {
  const std::string message = complaint([&] { Way::parse(text); });
  RC_ASSERT(message != "" || !text.empty());
}

}  // namespace
}  // namespace gradwire
