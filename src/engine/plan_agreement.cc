#include "engine/plan_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <memory>

#include "engine/parts.h"

namespace gradwire::engine {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(50);  // between looks for an interruption
constexpr std::size_t kWords = 1 + 4 + 4;                // of 16 bits, which floats hold exactly
using Words = std::array<float, kWords>;

void put(std::uint64_t number, std::span<float, 4> words) {
  for (float& word : words) {
    word = static_cast<float>(number & 0xFFFF);
    number >>= 16;
  }
}

/// Of what another version sent it may be any number.
std::uint64_t number_of(std::span<const float, 4> words) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool is_word = words[i] >= 0 && words[i] <= 0xFFFF;  // false for NaN
    number |= (is_word ? static_cast<std::uint64_t>(words[i]) : 0xFFFF) << (16 * i);
  }
  return number;
}

/// Ranks for whom it is so, or nobody.
std::vector<std::size_t> ranks_where(std::span<const Answer> answers,
                                     const std::function<bool(const Answer&)>& is_so) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (is_so(answers[rank])) ranks.push_back(rank);
  }
  return ranks;
}

std::string name(const std::vector<std::size_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

const char* have(const std::vector<std::size_t>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

}  // namespace

std::vector<Answer> gather_answers(Communicator& ranks, const Answer& own,
                                   const std::function<void()>& while_waiting) {
  const auto kept = std::make_shared<std::vector<Words>>(ranks.size());
  std::vector<Words>& all = *kept;
  Words& words = all[ranks.rank()];
  words[0] = own.refuses ? 1 : 0;
  put(own.from_step, std::span(words).subspan<1, 4>());
  put(own.hash, std::span(words).subspan<5, 4>());
  Work work = ranks.all_gather(Tensor{.view = {all.data(), kWords * all.size()}, .way = Way{}});
  work.on_done([kept](const Error*) {});  // who is interrupted leaves the operation under way
  while (!work.wait_for(kMoment)) {
    if (while_waiting) while_waiting();
  }
  std::vector<Answer> answers;
  for (const Words& each : all) {
    answers.push_back({each[0] != 0, number_of(std::span(each).subspan<1, 4>()),
                       number_of(std::span(each).subspan<5, 4>())});
  }
  return answers;
}

void check_alike(std::span<const Answer> answers) {
  const Answer& first = answers[0];
  const auto refusing = ranks_where(answers, [](const Answer& each) { return each.refuses; });
  if (!refusing.empty()) {
    refuse(fmt::format("the plan was not set: {} refused it for {} layers, and {} why there",
                       name(refusing), refusing.size() == 1 ? "its" : "their",
                       refusing.size() == 1 ? "says" : "say"));
  }
  const auto early =
      ranks_where(answers, [&](const Answer& each) { return each.from_step != first.from_step; });
  if (!early.empty()) {
    refuse(
        fmt::format("the plan was not set: rank 0 sets it from step {} on, {} from step {}; set "
                    "it from the same step on all ranks",
                    first.from_step, name(early), answers[early[0]].from_step));
  }
  const auto layers_of = [](const Answer& answer) { return answer.hash >> 32; };
  const auto others =
      ranks_where(answers, [&](const Answer& each) { return layers_of(each) != layers_of(first); });
  if (!others.empty()) {
    refuse(
        fmt::format("the plan was not set: {} {} other layers than rank 0; register the same "
                    "ones, of the same sizes and dtypes, on all ranks",
                    name(others), have(others)));
  }
  const auto differing =
      ranks_where(answers, [&](const Answer& each) { return each.hash != first.hash; });
  if (differing.empty()) return;
  refuse(
      fmt::format("the plan was not set: {} {} another plan than rank 0; give all ranks the same",
                  name(differing), have(differing)));
}

}  // namespace gradwire::engine
