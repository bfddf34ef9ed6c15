#include "engine/plan_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "base/byte_cursor.h"
#include "engine/gather_texts.h"
#include "engine/parts.h"

namespace gradwire::engine {
namespace {

/// Bytes, as a text may have any.
std::string written(const Answer& answer) {
  ByteWriter writer;
  writer.write(answer.from_step);
  writer.write(answer.hash);
  writer.write_all(std::span(answer.refusal));
  const auto bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Answer read(const std::string& text, std::size_t rank) {
  ByteReader reader(std::as_bytes(std::span(text)));
  Answer answer;
  if (!reader.read(answer.from_step) || !reader.read(answer.hash)) {
    throw Error(
        ErrorCode::peer_failed,
        fmt::format("rank {} sent what is no plan: does it run the same version of gradwire?",
                    rank));
  }
  answer.refusal = text.substr(text.size() - reader.rest().size());
  return answer;
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
  std::vector<Answer> answers;
  for (const std::string& text : gather_texts(ranks, written(own), {}, while_waiting)) {
    answers.push_back(read(text, answers.size()));
  }
  return answers;
}

void check_alike(std::span<const Answer> answers) {
  const Answer& first = answers[0];
  const auto refusing =
      ranks_where(answers, [](const Answer& each) { return !each.refusal.empty(); });
  if (!refusing.empty()) {
    refuse(fmt::format("the plan was not set: {} refused it for {} layers: {}", name(refusing),
                       refusing.size() == 1 ? "its" : "their", answers[refusing[0]].refusal));
  }
  const auto early =
      ranks_where(answers, [&](const Answer& each) { return each.from_step != first.from_step; });
  if (!early.empty()) {
    refuse(
        fmt::format("the plan was not set: rank 0 sets it from step {} on, {} from step {}; set "
                    "it from the same step on all ranks",
                    first.from_step, name(early), answers[early[0]].from_step));
  }
  const auto others = ranks_where(
      answers, [&](const Answer& each) { return each.hash.layers != first.hash.layers; });
  if (others.empty()) return;
  refuse(
      fmt::format("the plan was not set: {} {} other layers than rank 0; register the same "
                  "ones, of the same sizes and dtypes, on all ranks",
                  name(others), have(others)));
}

void check_same_ways(Communicator& ranks, std::span<const Answer> answers,
                     std::span<const LayerWays> own, const std::function<void()>& while_waiting) {
  const auto differing = ranks_where(
      answers, [&](const Answer& each) { return each.hash.ways != answers[0].hash.ways; });
  if (differing.empty()) return;
  std::string lines;
  for (const LayerWays& each : own) lines += each.ways + '\n';
  const auto texts = gather_texts(ranks, lines, {}, while_waiting);
  std::istringstream here(texts[0]), there(texts[differing[0]]);
  std::string first, other;
  for (const LayerWays& each : own) {
    std::getline(here, first);
    std::getline(there, other);
    if (first == other) continue;
    refuse(
        fmt::format("the plan was not set: {} {} another plan than rank 0: for layer '{}' rank {} "
                    "has {} where rank 0 has {}; give all ranks the same",
                    name(differing), have(differing), each.layer, differing[0], other, first));
  }
  refuse(fmt::format("the plan was not set: {} {} another plan than rank 0", name(differing),
                     have(differing)));
}

}  // namespace gradwire::engine
