#include "collective/lifetimes.h"

#include <algorithm>
#include <optional>

namespace gradwire {
namespace {

bool uses_slot(Op op) {
  return op == Op::send || op == Op::keep || op == Op::decode || op == Op::echo ||
         op == Op::decode_add;
}
bool fills_slot(Op op) { return op == Op::encode || op == Op::receive; }
bool changes_kept(Op op) {
  return op == Op::load || op == Op::add || op == Op::keep || op == Op::keep_rounding;
}

/// One chunk, if all its places were the same memory: which of them it holds.
struct Chunk {
  bool input = true;
  bool sum = false;
  bool output = false;
  bool summed = false;  // there is a sum at all
  bool fits = true;     // so far

  void hold(Place place) {
    input = place == Place::input;
    sum = place == Place::sum;
    output = place == Place::output;
  }
  bool holds(Place place) const { return place == Place::input ? input : sum; }

  void step(const Step& step) {
    switch (step.op) {
      case Op::load:
        fits &= input;
        hold(Place::sum);
        break;
      case Op::store:
        fits &= sum;
        output = true;
        break;
      case Op::add:
        fits = false;
        break;
      case Op::encode:
      case Op::keep:
        fits &= holds(step.place);
        break;
      case Op::echo:
        fits &= holds(step.place);
        hold(Place::output);
        break;
      case Op::decode:
        hold(step.place);
        break;
      case Op::decode_add:
      case Op::finish:
        fits &= sum;
        hold(Place::sum);
        break;
      case Op::keep_rounding:
        fits &= sum;
        break;
      default:
        break;
    }
    summed |= sum;
  }
};

std::vector<bool> chunks_in_one_place(const Schedule& schedule) {
  std::vector<bool> result;
  std::vector<Chunk> chunks(schedule.chunks);
  for (const Step& step : schedule.steps) {
    for (std::uint32_t i = step.first; i < step.first + step.count; ++i) chunks[i].step(step);
  }
  for (const Chunk& chunk : chunks) {
    result.push_back(chunk.summed && chunk.fits && chunk.output);
  }
  return result;
}

std::vector<bool> last_uses(const Schedule& schedule) {
  std::vector<bool> result(schedule.steps.size());
  std::vector<bool> needed(schedule.slots, false);  // by a later step
  for (std::size_t i = schedule.steps.size(); i-- > 0;) {
    const Step& step = schedule.steps[i];
    if (uses_slot(step.op)) {
      result[i] = !needed[step.slot];
      needed[step.slot] = true;
    } else if (fills_slot(step.op)) {
      needed[step.slot] = false;
    }
  }
  return result;
}

std::vector<std::uint32_t> sends_of(const Schedule& schedule) {
  struct Message {
    std::size_t counted_at = 0;
    bool received = false;  // and nothing else so far
    std::uint32_t sends = 0;
  };
  std::vector<std::uint32_t> result(schedule.steps.size());
  std::vector<Message> messages(schedule.slots);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (!fills_slot(step.op) && !uses_slot(step.op)) continue;
    Message& message = messages[step.slot];
    if (fills_slot(step.op)) message = {i, step.op == Op::receive, 0};
    if (step.op == Op::send) ++message.sends;
    if (message.received && uses_slot(step.op) && step.op != Op::send) {
      result[message.counted_at] = 0;
      message.counted_at = i;
      message.received = false;
    }
    result[message.counted_at] = message.sends;
  }
  return result;
}

std::vector<std::size_t> last_keepings(const Schedule& schedule) {
  std::vector<std::size_t> result(schedule.chunks, schedule.steps.size());
  for (std::size_t at = 0; at < schedule.steps.size(); ++at) {
    const Step& step = schedule.steps[at];
    if (!changes_kept(step.op)) continue;
    for (std::uint32_t i = 0; i < step.count; ++i) result[step.first + i] = at;
  }
  return result;
}

/// Where inputs travel exactly, what is lost is what their sums lose.
std::vector<bool> measured_of(const Schedule& schedule) {
  const auto is_lossy = [](const Step& step) { return step.op == Op::keep && !step.exact; };
  const bool inputs = std::ranges::any_of(schedule.steps, [&](const Step& step) {
    return is_lossy(step) && step.place == Place::input;
  });
  std::vector<bool> result;
  for (const Step& step : schedule.steps) {
    result.push_back(is_lossy(step) && (step.place == Place::input) == inputs);
  }
  return result;
}

}  // namespace

Lifetimes lifetimes_of(const Schedule& schedule) {
  return {chunks_in_one_place(schedule), last_uses(schedule), sends_of(schedule),
          last_keepings(schedule), measured_of(schedule)};
}

std::uint32_t most_copies(const Schedule& schedule) {
  const Lifetimes lifetimes = lifetimes_of(schedule);
  std::vector<std::uint32_t> copies(schedule.chunks);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.op != Op::encode && lifetimes.sends[i] == 0) continue;
    for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
      ++copies[chunk];
    }
  }
  return std::ranges::max(copies);
}

}  // namespace gradwire
