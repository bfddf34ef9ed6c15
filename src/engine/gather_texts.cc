#include "engine/gather_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "engine/parts.h"

namespace gradwire::engine {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(50);  // between looks for an interruption
/// A rank that gives up adds this to the length, which is then that of its reason.
constexpr std::size_t kGivesUp = kLongestText + 1;
constexpr std::size_t kNoLength = kGivesUp + kLongestReason + 1;

/// Of all ranks, equally many of each.
using Numbers = std::shared_ptr<std::vector<float>>;

/// Whoever does not wait to the end leaves the operation under way, which needs the numbers.
Work start(Communicator& ranks, const Numbers& numbers, std::chrono::milliseconds timeout) {
  OperationOptions options;
  options.timeout = timeout;
  Work work = ranks.all_gather(
      Tensor{.view = {numbers->data(), numbers->size(), Dtype::f32}, .way = Way{}}, options);
  work.on_done([numbers](const Error*) {});
  return work;
}

Work start_lengths(Communicator& ranks, const Numbers& lengths, std::size_t own,
                   std::chrono::milliseconds timeout) {
  lengths->resize(ranks.size());
  (*lengths)[ranks.rank()] = static_cast<float>(own);
  return start(ranks, lengths, timeout);
}

Work start_letters(Communicator& ranks, const Numbers& letters, std::size_t of_each,
                   std::string_view own, std::chrono::milliseconds timeout) {
  letters->resize(ranks.size() * of_each);
  const auto mine = letters->begin() + static_cast<std::ptrdiff_t>(ranks.rank() * of_each);
  std::ranges::transform(own, mine, [](char letter) { return static_cast<unsigned char>(letter); });
  return start(ranks, letters, timeout);
}

void wait_for(Work work, const std::function<void()>& while_waiting) {
  while (!work.wait_for(kMoment)) {
    if (while_waiting) while_waiting();
  }
}

bool is_whole_below(std::size_t end, float number) {  // false for NaN
  return number >= 0 && number < static_cast<float>(end) && number == std::trunc(number);
}

[[noreturn]] void refuse_sent(std::size_t rank, const std::string& what) {
  throw Error(
      ErrorCode::peer_failed,
      fmt::format("rank {} sent {}: does it run the same version of gradwire?", rank, what));
}

void check_lengths(std::span<const float> lengths) {
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (is_whole_below(kNoLength, lengths[rank])) continue;
    refuse_sent(rank, fmt::format("a text of {} bytes, which cannot be", lengths[rank]));
  }
}

std::string text_of(std::span<const float> letters, std::size_t rank) {
  std::string text;
  for (const float letter : letters) {
    if (!is_whole_below(256, letter)) {
      refuse_sent(rank, fmt::format("a text with the letter {}, which is none", letter));
    }
    text.push_back(static_cast<char>(static_cast<unsigned char>(letter)));
  }
  return text;
}

/// Not in the middle of a letter of UTF-8.
std::string_view shortened(std::string_view reason) {
  if (reason.size() <= kLongestReason) return reason;
  std::size_t bytes = kLongestReason;
  while (bytes > 0 && (static_cast<unsigned char>(reason[bytes]) & 0xC0) == 0x80) --bytes;
  return reason.substr(0, bytes);
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& own,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void()>& while_waiting) {
  if (own.size() > kLongestText) {
    refuse(fmt::format("a text of {} bytes is too long for other ranks", own.size()));
  }
  const auto lengths = std::make_shared<std::vector<float>>();
  wait_for(start_lengths(ranks, lengths, own.size(), timeout), while_waiting);
  check_lengths(*lengths);
  const float longest = std::ranges::max(*lengths);
  const bool given_up = longest >= static_cast<float>(kGivesUp);
  const std::size_t of_each = given_up ? kLongestReason : static_cast<std::size_t>(longest);
  if (of_each == 0) return std::vector<std::string>(ranks.size());
  const auto letters = std::make_shared<std::vector<float>>();
  wait_for(start_letters(ranks, letters, of_each, given_up ? "" : own, timeout), while_waiting);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths->size(); ++rank) {
    const auto length = static_cast<std::size_t>((*lengths)[rank]);
    const std::span<const float> sent = std::span(*letters).subspan(rank * of_each, of_each);
    if (length >= kGivesUp) throw GivenUp(text_of(sent.first(length - kGivesUp), rank));
    texts.push_back(given_up ? "" : text_of(sent.first(length), rank));
  }
  return texts;
}

void give_up(Communicator& ranks, const std::string& reason) {
  const std::string_view said = shortened(reason);
  start_lengths(ranks, std::make_shared<std::vector<float>>(), kGivesUp + said.size(), {});
  start_letters(ranks, std::make_shared<std::vector<float>>(), kLongestReason, said, {});
}

}  // namespace gradwire::engine
