#include "feedback/residuals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "codec/each_sent.h"
#include "gradwire/communicator.h"
#include "gradwire/error.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

TEST(Residuals, start_at_zero_and_keep_what_is_written) {
  Residuals residuals;
  EXPECT_EQ(residuals.borrow("a", 3)->numbers, KeptNumbers(3));
  residuals.borrow("a", 3)->numbers[1] = 5;
  EXPECT_EQ(residuals.borrow("a", 3)->numbers[1], 5);
  EXPECT_EQ(residuals.borrow("b", 3)->numbers[1], 0);
}

TEST(Residuals, are_lent_to_one_at_a_time) {
  Residuals residuals;
  {
    const auto loan = residuals.borrow("a", 3);
    EXPECT_THROW(residuals.borrow("a", 3), Error);
    EXPECT_NO_THROW(residuals.borrow("b", 3));
  }
  EXPECT_NO_THROW(residuals.borrow("a", 3));
}

TEST(Residuals, accumulate_numbers_of_any_dtype) {
  Residuals residuals;
  const auto loan = residuals.borrow("a", 2);
  const float floats[] = {1, 2};
  const std::uint16_t halves[] = {0x3C00, 0x4000};  // 1, 2
  loan->accumulate(0, {floats, 2, Dtype::f32}, {});
  loan->accumulate(0, {halves, 2, Dtype::f16}, {});
  EXPECT_EQ(loan->numbers, (KeptNumbers{2, 4}));
}

TEST(Residuals, gain_the_momentum_of_torchs_sgd) {
  for (const bool nesterov : {false, true}) {
    Residual residual{KeptNumbers(1)};
    double speed = 0;
    double way = 0;
    for (const float gradient : {1.0f, -0.5f, 2.0f, 0.0f}) {
      residual.accumulate(0, {&gradient, 1}, {0.9f, nesterov});
      speed = 0.9 * speed + gradient;
      way += nesterov ? gradient + 0.9 * speed : speed;
      EXPECT_FLOAT_EQ(residual.numbers[0], static_cast<float>(way));
    }
  }
}

TEST(Residuals, keep_what_was_not_sent) {
  Residual residual{{9, 9, 9, 9}};
  const float wanted[] = {1, 1.5f, INFINITY};
  const float sent[] = {0, 1, 4};  // of the last three, divided by two
  residual.keep(1, wanted, sent, 2, Into::assign);
  EXPECT_EQ(residual.numbers, (KeptNumbers{9, 2, 1, 0}));
}

TEST(Residuals, keep_what_a_sparse_codec_did_not_send_and_with_masking_stop_what_it_did) {
  const float gradient[] = {1, 2, 3, 4};
  Residual residual{KeptNumbers(4)};
  residual.accumulate(0, {gradient, 4}, {.momentum = 0.5f, .masking = true});
  const float wanted[] = {1, 1.5f, NAN};
  const std::uint64_t places[] = {1, 2};
  const float sent[] = {1, NAN};
  residual.keep_all(1, wanted, 2, Into::assign);
  EXPECT_EQ(residual.numbers, (KeptNumbers{1, 2, 3, 0}));
  residual.take_sent(1, places, sent, 2);
  EXPECT_EQ(residual.numbers, (KeptNumbers{1, 2, 1, 0}));
  EXPECT_EQ(residual.momentum, (KeptNumbers{1, 2, 0, 0}));
}

TEST(Residuals, another_size_under_the_same_name_is_refused) {
  Residuals residuals;
  residuals.borrow("a", 3);
  EXPECT_THROW(residuals.borrow("a", 4), Error);
}

TEST(Residuals, saved_ones_load_equal) {
  Residuals residuals;
  residuals.borrow("a", 3)->numbers = {1, 2, 3};
  residuals.borrow("", 0);
  residuals.borrow("b", 1)->numbers = {-4};
  const float gradient[] = {5, 6};
  residuals.borrow("c", 2)->accumulate(0, {gradient, 2}, {0.9f, true});
  std::vector<double> notes;
  const Codec codec = residuals.borrow("c", 2)->fit(Codec::parse("topk:density=0.5"), notes, 5);
  residuals.borrow("c", 2)->sent_since_fit = 1;
  Residuals loaded;
  loaded.borrow("old", 2);
  loaded.load(residuals.save());
  EXPECT_EQ(loaded.borrow("a", 3)->numbers, (KeptNumbers{1, 2, 3}));
  EXPECT_EQ(loaded.borrow("b", 1)->numbers[0], -4);
  EXPECT_EQ(loaded.borrow("c", 2)->momentum, (KeptNumbers{5, 6}));
  EXPECT_EQ(loaded.save(), residuals.save());
  EXPECT_EQ(loaded.borrow("c", 2)->fit(Codec::parse("topk:density=0.5"), notes, 5), codec);
}

/// As an operation does it: few numbers of the residual are sent.
std::uint64_t send_some(Residual& residual, const Codec& codec) {
  const ConstTensorView numbers{residual.numbers.data(), residual.numbers.size()};
  std::vector<std::byte> bytes(codec.max_encoded_bytes(numbers.count));
  bytes.resize(codec.encode(numbers, {}, bytes).bytes);
  auto take = [&](std::span<const std::uint64_t> places, std::span<const float> values) {
    residual.take_sent(0, places, values, 1);
    residual.sent_since_fit += places.size();
  };
  EXPECT_EQ(each_sent(codec, bytes, Dtype::f32, numbers.count, take), Status::ok);
  return residual.sent_since_fit;
}

TEST(Residuals, use_a_threshold_again_while_it_fits) {
  const Codec codec = Codec::parse("topk:density=0.1,select=exact");
  std::vector<double> notes;
  std::vector<float> input(1000);
  Residual residual{KeptNumbers(1000)};
  std::vector<Codec> used;
  std::vector<std::uint64_t> sent;
  for (int step = 0; step < 7; ++step) {
    // Ever a bit larger, so that a threshold tells its step; then much.
    const float size = step == 5 ? 3 : 1 + 0.01f * static_cast<float>(step);
    for (std::size_t i = 0; i < 1000; ++i) {
      input[i] = size * static_cast<float>((i * 7 + step * 100) % 1000);
    }
    std::ranges::copy(input, residual.numbers.begin());
    used.push_back(residual.fit(codec, notes, 4));
    sent.push_back(send_some(residual, used.back()));
  }
  EXPECT_EQ(used[6], codec.fit(ConstTensorView{input.data(), 1000}));
  for (const int step : {1, 2, 3}) EXPECT_EQ(used[step], used[0]) << step;
  EXPECT_NE(used[4], used[0]) << "it was used four times";
  EXPECT_EQ(used[5], used[4]);
  EXPECT_GT(sent[5], 2 * sent[4]);
  EXPECT_EQ(residual.fitted->uses, 1u) << "of a threshold that let too many through";
  EXPECT_NEAR(static_cast<double>(sent[6]), 100, 1);
}

TEST(Residuals, use_no_threshold_again_that_nothing_exceeds) {
  const Codec codec = Codec::parse("topk:density=0.1");
  std::vector<double> notes;
  Residual residual{KeptNumbers(1000)};
  send_some(residual, residual.fit(codec, notes, 5));
  std::iota(residual.numbers.begin(), residual.numbers.end(), 1.0f);
  EXPECT_GT(send_some(residual, residual.fit(codec, notes, 5)), 50u);
}

TEST(Residuals, gain_no_momentum_from_what_is_not_finite) {
  for (const bool masking : {false, true}) {
    Residual residual{KeptNumbers(2)};
    const float bad[] = {NAN, INFINITY};
    const float good[] = {1, 2};
    residual.accumulate(0, {bad, 2}, {.momentum = 0.9f, .masking = masking});
    for (const float number : residual.numbers) EXPECT_FALSE(std::isfinite(number));  // arrives
    const KeptNumbers sent = residual.numbers;
    residual.keep(0, sent, sent, 1, Into::assign);
    residual.accumulate(0, {good, 2}, {.momentum = 0.9f, .masking = masking});
    EXPECT_EQ(residual.numbers, (KeptNumbers{1, 2}));
  }
}

TEST(Residuals, of_several_ranks_merge_into_one) {
  Residuals first, second;
  first.borrow("0/a", 2)->numbers = {1, 2};
  first.borrow("b", 1)->numbers = {5};
  const float gradient[] = {4, 6};
  second.borrow("0/a", 2)->accumulate(0, {gradient, 2}, {0.5f, false});
  const auto saved = {first.save(), second.save()};
  const std::vector<std::span<const std::byte>> views(saved.begin(), saved.end());
  const auto scale = [](const std::string& name) { return name == "b" ? 1.0f : 0.5f; };
  Residuals merged;
  merged.load(merge_residuals(views, scale));
  EXPECT_EQ(merged.borrow("0/a", 2)->numbers, (KeptNumbers{2.5f, 4}));
  EXPECT_EQ(merged.borrow("0/a", 2)->momentum, (KeptNumbers{2, 3}));
  EXPECT_EQ(merged.borrow("b", 1)->numbers[0], 5);
  EXPECT_EQ(merge_residuals({}, scale), Residuals().save());
  Residuals other;
  other.borrow("b", 2);
  const auto unlike = other.save();
  const std::span<const std::byte> both[] = {views[0], unlike};
  EXPECT_THROW(merge_residuals(both, scale), Error);
}

TEST(Residuals, are_neither_saved_nor_replaced_while_one_is_lent) {
  Residuals residuals;
  residuals.borrow("a", 1)->numbers = {1};
  const auto saved = residuals.save();
  {
    const Residuals::Loan loan = residuals.borrow("b", 1);
    EXPECT_THROW(residuals.save(), Error);
    EXPECT_THROW(residuals.load(saved), Error);
    loan->numbers[0] = 2;  // still there
  }
  EXPECT_EQ(residuals.borrow("b", 1)->numbers[0], 2);
  residuals.load(saved);
  EXPECT_EQ(residuals.save(), saved);
}

TEST(Residuals, damaged_bytes_are_refused_and_change_nothing) {
  Residuals residuals;
  residuals.borrow("a", 3)->numbers = {1, 2, 3};
  const auto bytes = residuals.save();
  Residuals other;
  other.borrow("b", 1)->numbers[0] = 7;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{4};
    EXPECT_THROW(other.load(damaged), Error) << i;
    EXPECT_THROW(other.load(std::span(bytes).first(i)), Error) << i;
  }
  EXPECT_EQ(other.borrow("b", 1)->numbers[0], 7);
}

}  // namespace
}  // namespace gradwire
